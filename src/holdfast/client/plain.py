"""A message whose verbs answer at once: the payload of the blocking API, and of handlers in processes."""

from collections.abc import Iterator
from io import BytesIO

from msgspec.structs import replace

from holdfast.client.message import Message
from holdfast.client.reading import PART, Reading, Target, opened, write_all
from holdfast.client.tracebacks import raises_plainly


@raises_plainly
class PlainMessage(Message):
    __slots__ = ()

    def read_part(self, offset: int, limit: int) -> bytes:
        """Of a payload that was left where it is."""
        raise NotImplementedError

    @property
    def payload(self) -> bytes:
        """All of it, in memory from then on: a large one is read when it is first asked for."""
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
        """The payload in parts of at most 1 MiB, of which one is in memory at a time."""
        delivery = self._held.delivery
        if delivery.pieces is None:
            if delivery.payload:
                yield delivery.payload
            return
        reading = Reading(delivery)
        while not reading.is_over:
            yield reading.take(self.read_part(reading.offset, PART))

    def write_to(self, file: Target) -> int:
        """Write the payload to an open binary file, or to a path; answers its length."""
        with opened(file) as target:
            return sum(write_all(target, part) for part in self.chunks())
