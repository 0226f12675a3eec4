"""A store with the fast path that reserves before each claim what that claim will find."""

from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.buffered.store import BufferedStore
from holdfast.stores.values import Claims


class ReservingStore(BufferedStore):
    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        await self._target.call(self._required().prefetcher.reserve_once(ref))
        return await super().claim(ref, asks, now_ms)
