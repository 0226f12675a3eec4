"""What the reader of a stream holds and has not settled: a stream claims no more than there is room for.

Over HTTP the server keeps count. Here a stream is one poll after the other, so the client does: by the verdicts that go
through it, and by leases that have run out, as far as this machine can tell.
"""

from holdfast.client.remote.tasks import WakeFlag
from holdfast.clock import SystemClock, steady_s
from holdfast.model.answers import Delivery, Result
from holdfast.model.message import Receipt
from holdfast.model.requests import Settle, Verdict


class Unsettled:
    """Of one stream: at most `most` deliveries."""

    def __init__(self, most: int, lease_ms: int | None, change: WakeFlag) -> None:
        """`lease_ms`: as the stream asked for. None: the queue's, which only the deliveries tell."""
        self._most = most
        self._lease_ms = lease_ms
        # By id: what proves the lease, and when it has run out.
        self._held: dict[int, tuple[Receipt, float]] = {}
        self._change = change

    def add(self, deliveries: list[Delivery]) -> None:
        now_s, now_ms = steady_s(), SystemClock().now_ms()
        for delivery in deliveries:
            lasts_ms = delivery.lease_expires_at - now_ms if self._lease_ms is None else self._lease_ms
            self._held[delivery.snowflake] = delivery.receipt, now_s + lasts_ms / 1_000

    def note(self, verdicts: list[Verdict], results: list[Result]) -> None:
        """Verdicts were carried out."""
        for verdict, result in zip(verdicts, results, strict=True):
            held = self._held.get(result.snowflake)
            if held is None or held[0] != verdict.receipt or result.is_retryable:
                continue
            if verdict.settle is Settle.EXTEND and result.ok:
                lasts_ms = (result.lease_expires_at or 0) - SystemClock().now_ms()
                if verdict.lease_ms is not None:
                    lasts_ms = verdict.lease_ms
                self._held[result.snowflake] = verdict.receipt, steady_s() + lasts_ms / 1_000
            else:  # settled, or no longer this reader's
                del self._held[result.snowflake]
        self._change.set()

    def makes_room(self, verdict: Verdict) -> bool:
        """Return whether a verdict, carried out, leaves the reader with one less."""
        held = self._held.get(verdict.receipt.id)
        return held is not None and held[0] == verdict.receipt and verdict.settle is not Settle.EXTEND

    def tell(self) -> None:
        """Let the reader, if it waits, look again."""
        self._change.set()

    def room(self) -> int:
        now_s = steady_s()
        for id in [id for id, (_, until_s) in self._held.items() if until_s <= now_s]:
            del self._held[id]
        return self._most - len(self._held)

    async def wait_for_change(self, *, has_claim: bool) -> None:
        """Until a verdict, or the end of the lease that ends first. `has_claim`: a claim under way changes it too."""
        if has_claim or not self._held:
            await self._change.wait(None)
        else:
            first_s = min(until_s for _, until_s in self._held.values())
            await self._change.wait(max(0.0, first_s - steady_s()))
        self._change.clear()
