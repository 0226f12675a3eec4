"""Extend the leases of messages while their handlers run, all leases of a queue in one call."""

import asyncio

from holdfast.background import Backoff
from holdfast.clock import Timer
from holdfast.model.answers import Result
from holdfast.model.errors import HoldfastError
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.worker.context import ConsumerContext, first_of, log
from holdfast.worker.execution.retry_policy import RetryPolicy
from holdfast.worker.verdict_sender import TROUBLE
from holdfast.worker.work import InterruptReason, Work

# A warning is logged after this fraction of the maximum time that a message may be held.
WARN_AT = 0.8


class Heartbeat:
    """The heartbeat of one queue's messages. It runs every third of the lease while a handler is running."""

    def __init__(self, ref: QueueRef, lease_ms: int, context: ConsumerContext, retry_policy: RetryPolicy) -> None:
        self._ref = ref
        self._lease_ms = lease_ms
        self._period_ms = max(lease_ms // 3, 1)
        self._connection = context.connection
        self._runtime = context.runtime
        self._clock = context.runtime.clock
        self._dice = context.dice
        self._reachability = context.reachability
        self._retry_policy = retry_policy
        self._held: dict[int, Work] = {}
        self._timer: Timer | None = None
        self._is_beating = False
        self._is_missing = False
        self._due_at = 0
        # After an unexpected error the next heartbeat comes within one period, so that no lease expires meanwhile.
        self._backoff = Backoff("heartbeat", longest_ms=self._period_ms, queue=ref)

    def add(self, work: Work) -> None:
        """Extend the lease of a message from now on."""
        self._held[id(work)] = work
        if self._timer is None and not self._is_beating:
            self._arm(self._period_ms)

    def remove(self, work: Work) -> None:
        """Stop extending the lease of a message."""
        self._held.pop(id(work), None)
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, ms: int) -> None:
        self._due_at = self._clock.now_ms() + ms
        self._timer = self._runtime.call_at(self._due_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._is_beating = True
        self._runtime.spawn(self._beat())

    async def _beat(self) -> None:
        next_ms = self._period_ms
        try:
            if self._held:
                next_ms = await self.beat_once()
        except Exception as error:
            next_ms = self._backoff.failed(error)
        else:
            self._backoff.succeeded()
        finally:
            self._is_beating = False
            if self._held:
                self._arm(next_ms)

    async def beat_once(self) -> int:
        """Extend all leases once. Return the delay of the next heartbeat in milliseconds."""
        works = list(self._held.values())
        now_ms = self._clock.now_ms()
        if now_ms - self._due_at > self._period_ms:
            log.warning(
                "heartbeat_late queue=%s late_s=%.1f: the event loop was blocked or the process was suspended; leases "
                "may be lost, so run blocking code in a plain `def` handler or in a process",
                self._ref,
                (now_ms - self._due_at) / 1_000,
            )
        results = await self._extend(works)
        if results is None:
            return self._missed(works)
        self._reachability.regain()
        unwritten = [work for work, result in zip(works, results, strict=True) if result.is_retryable]
        self._is_missing = self._is_missing and bool(unwritten)
        for work, result in zip(works, results, strict=True):
            if id(work) not in self._held:
                continue  # its handler ended meanwhile, and its own verdict may have ended the lease
            if result.ok:
                # Counted from before the call, so that the real lease is not shorter than this estimate.
                work.lease_until = now_ms + self._lease_ms
                if result.lease_expires_at is not None:
                    work.message._held.lease_expires_at = result.lease_expires_at
            elif not result.is_retryable:
                work.interrupt(
                    InterruptReason.LOST, "the lease expired, or the message was settled, claimed again or removed"
                )
        await self._warn_of_long(works)
        # A lease that could not be extended has not expired yet, so there is time to retry.
        return self._missed(unwritten) if unwritten else self._period_ms

    async def _extend(self, works: list[Work]) -> list[Result] | None:
        """Extend leases. Return None if the server was unreachable or did not respond in time."""
        verdicts = [
            Verdict(settle=Settle.EXTEND, receipt=each.message._held.delivery.receipt, lease_ms=self._lease_ms)
            for each in works
        ]
        call = asyncio.ensure_future(self._connection.messages.settle(self._ref, verdicts))
        try:
            until = min(each.lease_until for each in works)
            await first_of(self._runtime, [call], max(1, min(until - self._clock.now_ms(), self._period_ms)))
            if call.done():
                return call.result()
            self._reachability.lose("a heartbeat got no response")
        except TROUBLE as error:
            self._reachability.lose(error)
        except (
            HoldfastError
        ) as error:  # the whole call was refused, but the cause may be fixed before the leases expire
            log.warning("heartbeat_refused queue=%s error=%s", self._ref, error.message)
        finally:
            call.cancel()
        return None

    def _missed(self, works: list[Work]) -> int:
        """Interrupt messages whose lease has expired by this process's clock after a failed heartbeat.

        Return the delay of the next attempt in milliseconds.
        """
        now_ms = self._clock.now_ms()
        remaining_ms = self._lease_ms
        for work in works:
            if id(work) not in self._held:
                continue
            if work.lease_until <= now_ms:
                work.interrupt(InterruptReason.LOST, "no heartbeat succeeded before the lease expired")
            else:
                remaining_ms = min(remaining_ms, work.lease_until - now_ms)
        if not self._is_missing:
            self._is_missing = True
            log.warning(
                "heartbeat_failed queue=%s messages=%d leases_last_s=%.1f: it is retried",
                self._ref,
                len(works),
                remaining_ms / 1_000,
            )
        # Soon, with jitter so that not all workers call at once, and at the latest when the first lease expires.
        return max(1, min(int(self._period_ms * (0.1 + 0.2 * self._dice.roll())), remaining_ms))

    async def _warn_of_long(self, works: list[Work]) -> None:
        now_ms = self._clock.now_ms()
        max_lease_ms = (await self._retry_policy.policy()).max_lease_ms
        for work in works:
            if not work.is_warned and now_ms - work.claimed_at >= WARN_AT * max_lease_ms:
                work.is_warned = True
                log.warning(
                    "message_held_long held_s=%.0f max_lease_s=%.0f: raise the queue's max_lease_ms, or split the work",
                    (now_ms - work.claimed_at) / 1_000,
                    max_lease_ms / 1_000,
                    extra=work.facts(),
                )
