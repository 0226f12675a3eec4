"""The payload part of a store that takes and returns every payload whole."""

from holdfast.model.errors import Internal
from holdfast.model.message import Draft, Pieces
from holdfast.model.names import QueueRef
from holdfast.stores.contract import PayloadReader, PayloadWriter


class WholePayloads:
    """A `PayloadStore` without function: nothing calls it without `Capabilities.streams_above`."""

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> PayloadWriter:
        raise Internal("this store takes every payload whole")

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PayloadReader:
        raise Internal("this store gives every payload whole")
