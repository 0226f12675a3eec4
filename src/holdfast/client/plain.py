"""A message whose verbs return at once, for the blocking API and for handlers in processes."""

from collections.abc import Iterator
from io import BytesIO

from msgspec.structs import replace

from holdfast.client.message import Message
from holdfast.client.payloads.part_reader import PART, PayloadCursor, Target, opened, write_all
from holdfast.client.tracebacks import raises_plainly


@raises_plainly
class PlainMessage(Message):
    """A claimed message that reads large payloads when they are asked for."""

    __slots__ = ()

    def read_part(self, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes, from `offset` on, of a payload that is still in the store."""
        raise NotImplementedError

    @property
    def payload(self) -> bytes:
        """The whole payload. A large one is read at the first use and kept in memory."""
        return self.load()

    def load(self) -> bytes:
        delivery = self._held.delivery
        if delivery.pieces is not None:
            whole = BytesIO()
            for part in self.chunks():
                whole.write(part)
            self._held.delivery = delivery = replace(delivery, payload=whole.getvalue(), pieces=None)
        return delivery.payload

    def chunks(self) -> Iterator[bytes]:
        delivery = self._held.delivery
        if delivery.pieces is None:
            if delivery.payload:
                yield delivery.payload
            return
        reading = PayloadCursor(delivery)
        while not reading.is_over:
            yield reading.take(self.read_part(reading.offset, PART))

    def write_to(self, file: Target) -> int:
        with opened(file) as target:
            return sum(write_all(target, part) for part in self.chunks())
