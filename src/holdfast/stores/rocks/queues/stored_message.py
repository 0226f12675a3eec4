"""A message as this store keeps it in memory."""

import msgspec

from holdfast.model.message import Envelope
from holdfast.model.rules.lifecycle import Life


class StoredMessage(msgspec.Struct, gc=False):
    """A loaded message. Its life is replaced in place when the message changes."""

    # The prefix of its queue's keys.
    p: bytes
    envelope: Envelope
    life: Life
    # Its id as in keys.
    id16: bytes
    # The size of the payload and headers, as quotas count it.
    bytes: int
    # A separate life record is on disk, because the message no longer has the life it was enqueued with.
    has_life: bool = False
    # It has a state document.
    has_state: bool = False
