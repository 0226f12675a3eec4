"""Heartbeats: while handlers work, their leases are extended, all those of a queue in one call."""

import asyncio

from holdfast.background import Backoff
from holdfast.clock import Timer
from holdfast.dice import Dice
from holdfast.model.answers import Result
from holdfast.model.errors import HoldfastError
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.runtime import LoopRuntime
from holdfast.worker.consuming.connection import WorkerConnection
from holdfast.worker.consuming.verdict_sender import TROUBLE
from holdfast.worker.consuming.waiting import Reach, first_of, log
from holdfast.worker.execution.retry_policy import RetryPolicy
from holdfast.worker.work import Why, Work

# Of the longest a message may be held in all: time to say that its handler will not make it.
WARN_AT = 0.8


class Heartbeat:
    def __init__(
        self,
        ref: QueueRef,
        lease_ms: int,
        link: WorkerConnection,
        runtime: LoopRuntime,
        dice: Dice,
        reach: Reach,
        terms: RetryPolicy,
    ) -> None:
        self._ref = ref
        self._lease_ms = lease_ms
        self._period_ms = max(lease_ms // 3, 1)
        self._link = link
        self._runtime = runtime
        self._clock = runtime.clock
        self._dice = dice
        self._reach = reach
        self._terms = terms
        self._held: dict[int, Work] = {}
        self._timer: Timer | None = None
        self._is_beating = False
        self._is_missing = False
        self._due_at = 0
        # A failure must not cost the leases: the next try comes within a beat.
        self._backoff = Backoff("heartbeat", longest_ms=self._period_ms, queue=ref)

    def add(self, work: Work) -> None:
        self._held[id(work)] = work
        if self._timer is None and not self._is_beating:
            self._arm(self._period_ms)

    def remove(self, work: Work) -> None:
        self._held.pop(id(work), None)
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, ms: int) -> None:
        self._due_at = self._clock.now_ms() + ms
        self._timer = self._runtime.call_at(self._due_at, self._ring)

    def _ring(self) -> None:
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
        """Extend what is in hand; answers in how many milliseconds to beat again."""
        works = list(self._held.values())
        now_ms = self._clock.now_ms()
        if now_ms - self._due_at > self._period_ms:
            log.warning(
                "a heartbeat for %s is %.1f s late: something held up the event loop, or this process was stopped. "
                "Leases are lost that way; let what blocks run in a plain `def`, or in a process",
                self._ref,
                (now_ms - self._due_at) / 1_000,
            )
        results = await self._extend(works)
        if results is None:
            return self._missed(works)
        self._reach.regain()
        unwritten = [work for work, result in zip(works, results, strict=True) if result.is_retryable]
        self._is_missing = self._is_missing and bool(unwritten)
        for work, result in zip(works, results, strict=True):
            if id(work) not in self._held:
                continue  # it ended meanwhile; that its lease is gone may be its own ack's doing
            if result.ok:
                # From before the call: the server's lease is no shorter than we think.
                work.lease_until = now_ms + self._lease_ms
                if result.lease_expires_at is not None:
                    work.message._held.lease_expires_at = result.lease_expires_at
            elif not result.is_retryable:
                work.interrupt(Why.LOST, "the lease ran out, or the message was settled, claimed again or removed")
        await self._warn_of_long(works)
        # A lease that could not be extended still stands, so there is time to try again.
        return self._missed(unwritten) if unwritten else self._period_ms

    async def _extend(self, works: list[Work]) -> list[Result] | None:
        """None: the server could not be asked, or did not answer while it mattered."""
        verdicts = [
            Verdict(settle=Settle.EXTEND, receipt=each.message._held.delivery.receipt, lease_ms=self._lease_ms)
            for each in works
        ]
        call = asyncio.ensure_future(self._link.messages.settle(self._ref, verdicts))
        try:
            until = min(each.lease_until for each in works)
            await first_of(self._runtime, [call], max(1, min(until - self._clock.now_ms(), self._period_ms)))
            if call.done():
                return call.result()
            self._reach.lose("a heartbeat was not answered")
        except TROUBLE as error:
            self._reach.lose(error)
        except HoldfastError as error:  # refused as a whole: as long as the leases last, it may be put right
            log.warning("a heartbeat for %s was refused: %s", self._ref, error.message)
        finally:
            call.cancel()
        return None

    def _missed(self, works: list[Work]) -> int:
        """No heartbeat could be sent: what is past its lease by our own clock is lost."""
        now_ms = self._clock.now_ms()
        left_ms = self._lease_ms
        for work in works:
            if id(work) not in self._held:
                continue
            if work.lease_until <= now_ms:
                work.interrupt(Why.LOST, "no heartbeat could be sent until its lease ran out")
            else:
                left_ms = min(left_ms, work.lease_until - now_ms)
        if not self._is_missing:
            self._is_missing = True
            log.warning(
                "no heartbeat could be sent for %d messages of %s; trying again, their leases last %.1f s more",
                len(works),
                self._ref,
                left_ms / 1_000,
            )
        # Soon again, but not all workers at the same moment; at the latest when the first lease ends.
        return max(1, min(int(self._period_ms * (0.1 + 0.2 * self._dice.roll())), left_ms))

    async def _warn_of_long(self, works: list[Work]) -> None:
        now_ms = self._clock.now_ms()
        max_lease_ms = (await self._terms.policy()).max_lease_ms
        for work in works:
            if not work.is_warned and now_ms - work.claimed_at >= WARN_AT * max_lease_ms:
                work.is_warned = True
                log.warning(
                    "a handler has held its message for %.0f s, and max_lease lets it for %.0f s: then it is lost. "
                    "Raise max_lease_ms of the queue, or split the work",
                    (now_ms - work.claimed_at) / 1_000,
                    max_lease_ms / 1_000,
                    extra=work.facts(),
                )
