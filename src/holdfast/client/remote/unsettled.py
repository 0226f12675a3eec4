"""The unsettled deliveries of a stream's reader, which limit how many the stream claims.

With a subscription the server counts them. A stream that polls counts them in the client, from the verdicts that it
sends and from leases that have expired by this machine's clock.
"""

from holdfast.client.remote.tasks import WakeFlag
from holdfast.clock import SystemClock, steady_s
from holdfast.model.answers import Delivery, Result
from holdfast.model.message import Receipt
from holdfast.model.requests import Settle, Verdict


class Unsettled:
    """The unsettled deliveries of one stream."""

    def __init__(self, limit: int, lease_ms: int | None, change: WakeFlag) -> None:
        """Allow `limit` deliveries. `lease_ms` is the lease of the claims; None for the queue's, known by delivery."""
        self._limit = limit
        self._lease_ms = lease_ms
        # By id: the receipt, and the steady time in seconds at which the lease expires.
        self._held: dict[int, tuple[Receipt, float]] = {}
        self._change = change

    def add(self, deliveries: list[Delivery]) -> None:
        now_s, now_ms = steady_s(), SystemClock().now_ms()
        for delivery in deliveries:
            lasts_ms = delivery.lease_expires_at - now_ms if self._lease_ms is None else self._lease_ms
            self._held[delivery.snowflake] = delivery.receipt, now_s + lasts_ms / 1_000

    def record(self, verdicts: list[Verdict], results: list[Result]) -> None:
        """Remove settled deliveries and note the new ends of extended leases."""
        for verdict, result in zip(verdicts, results, strict=True):
            held = self._held.get(result.snowflake)
            if held is None or held[0] != verdict.receipt or result.is_retryable:
                continue
            if verdict.settle is Settle.EXTEND and result.ok:
                lasts_ms = (result.lease_expires_at or 0) - SystemClock().now_ms()
                if verdict.lease_ms is not None:
                    lasts_ms = verdict.lease_ms
                self._held[result.snowflake] = verdict.receipt, steady_s() + lasts_ms / 1_000
            else:  # it was settled, or its lease was lost
                del self._held[result.snowflake]
        self._change.set()

    def frees_slot(self, verdict: Verdict) -> bool:
        """Return whether this verdict, once carried out, frees a slot of this reader."""
        held = self._held.get(verdict.receipt.id)
        return held is not None and held[0] == verdict.receipt and verdict.settle is not Settle.EXTEND

    def notify(self) -> None:
        """Wake the reader if it waits for a change."""
        self._change.set()

    def free_slots(self) -> int:
        """Return how many more deliveries the reader may hold, after removing those whose leases have expired."""
        now_s = steady_s()
        for id in [id for id, (_, until_s) in self._held.items() if until_s <= now_s]:
            del self._held[id]
        return self._limit - len(self._held)

    async def wait_for_change(self, *, has_claim: bool) -> None:
        """Wait for a verdict or for the first expiry of a lease. With `has_claim`, an open claim also ends the wait."""
        if has_claim or not self._held:
            await self._change.wait(None)
        else:
            first_s = min(until_s for _, until_s in self._held.values())
            await self._change.wait(max(0.0, first_s - steady_s()))
        self._change.clear()
