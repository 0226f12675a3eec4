"""The message whose methods are not awaited, for the blocking API and for handlers in child processes."""

from collections.abc import Iterator
from io import BytesIO

from msgspec.structs import replace

from holdfast.client.message import Message
from holdfast.client.payloads.part_reader import PART, PayloadCursor, Target, opened, write_all
from holdfast.client.tracebacks import trim_class_tracebacks


@trim_class_tracebacks
class SyncMessage(Message):
    """A claimed message that reads a large payload from the store at its first use."""

    __slots__ = ()

    def read_part(self, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes, starting at `offset`, of a payload that is still in the store."""
        raise NotImplementedError

    @property
    def payload(self) -> bytes:
        """The whole payload. A large one is read from the store at its first use and then kept in memory.

        Raise `StaleLease` if the lease is lost before a large payload was read.
        """
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
