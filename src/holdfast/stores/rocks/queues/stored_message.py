"""A message in memory."""

import msgspec

from holdfast.model.message import Envelope
from holdfast.model.rules.lifecycle import Life


class StoredMessage(msgspec.Struct, gc=False):
    p: bytes
    envelope: Envelope
    life: Life
    id16: bytes
    bytes: int
    # A life of its own lies on disk: it is no longer the one it was born with.
    has_life: bool = False
    has_state: bool = False
