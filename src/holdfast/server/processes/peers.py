"""Door processes, as the store process knows them."""

import itertools

from holdfast.service.subscriptions import DeliveryStream
from holdfast.service.uploads import PayloadStream
from holdfast.service.watches import NewsStream

# The bits of a stream's number above this one are the portion of the store process that has the stream.
PORTION_SHIFT = 40


class DoorPeer:
    """One door process: its secret, and the uploads, subscriptions and watches that it has opened."""

    def __init__(self, number: int, secret: str, portion: int = 0) -> None:
        """`portion` is that of this store process, in a divided store: it shows in the numbers of streams."""
        self.number = number
        self.secret = secret
        self._numbers = itertools.count((portion << PORTION_SHIFT) + 1)
        self.uploads: dict[int, PayloadStream] = {}
        self.subscriptions: dict[int, DeliveryStream] = {}
        self.watches: dict[int, NewsStream] = {}

    def take_number(self) -> int:
        """Return the number of a new upload, subscription or watch, by which later calls name it."""
        return next(self._numbers)

    async def close_stream(self, number: int) -> None:
        """End an upload, a subscription or a watch. Does nothing if it has ended already."""
        if (upload := self.uploads.pop(number, None)) is not None:
            upload.close()
        if (watch := self.watches.pop(number, None)) is not None:
            watch.close()
        if (subscription := self.subscriptions.pop(number, None)) is not None:
            await subscription.end()

    async def close(self) -> None:
        """End all of them, because the door process has ended."""
        for number in [*self.uploads, *self.watches, *self.subscriptions]:
            await self.close_stream(number)
