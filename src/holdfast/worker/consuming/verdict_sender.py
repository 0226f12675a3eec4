"""Verdicts on their way: on the next claim if one is about to be made, else at once, several in one call."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.background import Backoff
from holdfast.dice import Dice
from holdfast.model.answers import Result
from holdfast.model.errors import HoldfastError, Throttled, Unavailable
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.model.rules.retry import backoff_ms
from holdfast.runtime import LoopRuntime
from holdfast.worker.consuming.connection import WorkerConnection
from holdfast.worker.consuming.waiting import Reach, first_of

# What says "ask again" and not "you asked for the wrong thing": errors of sockets among them.
TROUBLE = (Unavailable, Throttled, OSError, TimeoutError)

RETRY_BASE_MS = 50
RETRY_CAP_MS = 2_000


class Pending:
    """A verdict that is not yet known to have been taken. Its future's None: it could not be delivered in time."""

    __slots__ = ("answered", "failures", "is_repeated", "lease_until", "retry_at", "verdict")

    def __init__(self, verdict: Verdict, lease_until: int) -> None:
        self.verdict = verdict
        # After this no verdict can be taken, so none is tried.
        self.lease_until = lease_until
        # Sent before, and no answer came: it may have been taken.
        self.is_repeated = False
        # How often it could not be delivered or written, and when it may go again.
        self.failures = 0
        self.retry_at = 0
        self.answered: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()

    def answer(self, result: Result | None) -> None:
        if not self.answered.done():
            if self.is_repeated and result is not None and not result.ok:
                result = replace(result, is_unsure=True)
            self.answered.set_result(result)


class Outbox:
    def __init__(self, ref: QueueRef, link: WorkerConnection, runtime: LoopRuntime, dice: Dice, reach: Reach) -> None:
        self._ref = ref
        self._link = link
        self._runtime = runtime
        self._dice = dice
        self._reach = reach
        self._waiting: list[Pending] = []
        self._is_sending = False
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A claim is about to be made, and takes what waits along.
        self._has_ride = False
        # Set when a verdict is posted: one that has to wait for its retry must not hold it up.
        self._posted = asyncio.Event()
        self._backoff = Backoff("outbox", queue=ref)

    def post(self, verdict: Verdict, lease_until: int, *, at_once: bool = False) -> "asyncio.Future[Result | None]":
        pending = Pending(verdict, lease_until)
        self._waiting.append(pending)
        self._posted.set()
        if at_once or not self._has_ride:
            self._send()
        return pending.answered

    def take(self) -> list[Pending]:
        """Take the waiting verdicts that may go now, for a claim to carry."""
        now_ms = self._runtime.clock.now_ms()
        taken = [each for each in self._waiting if each.retry_at <= now_ms][:MAX_BATCH]
        chosen = set(taken)
        self._waiting = [each for each in self._waiting if each not in chosen]
        return taken

    def put_back(self, taken: list[Pending]) -> None:
        """The claim failed: what of its riders is not answered waits again."""
        for each in taken:
            each.is_repeated = True
        self._waiting[:0] = [each for each in taken if not each.answered.done()]

    def postpone(self, taken: list[Pending]) -> None:
        """Put back verdicts that were not answered, each to go again after a pause of its own."""
        now_ms = self._runtime.clock.now_ms()
        for each in taken:
            each.retry_at = now_ms + 1 + backoff_ms(each.failures, RETRY_BASE_MS, RETRY_CAP_MS, self._dice.roll())
            each.failures += 1
        self.put_back(taken)

    def answer_all(self, batch: Sequence[Pending], results: Sequence[Result]) -> bool:
        """Answer each verdict with its result, but those that the store could not write: they may be sent again.

        Return whether all were answered; the caller puts the others back.
        """
        for each, result in zip(batch, results, strict=True):
            if not result.is_retryable:
                each.answer(result)
        return all(each.answered.done() for each in batch)

    def offer_ride(self) -> None:
        self._has_ride = True

    def end_ride(self) -> None:
        """No claim will be made for a while: what waits goes by itself."""
        self._has_ride = False
        self._send()

    def give_up(self) -> None:
        """Nothing is tried again: the leases will run out."""
        if not self._given_up.done():
            self._given_up.set_result(None)

    def _send(self) -> None:
        # One call at a time: what comes up meanwhile goes together in the next.
        if self._waiting and not self._is_sending:
            self._is_sending = True
            self._runtime.spawn(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                self._posted.clear()
                batch = self.take()
                if batch and await self._send_once(batch):
                    continue
                self.postpone(batch)
                self._drop_hopeless()
                await self._until_due()
        finally:
            self._is_sending = False

    async def _until_due(self) -> None:
        """Wait until a verdict may go again, another one is posted, or nothing is to be tried any more."""
        if self._waiting and not self._given_up.done():
            pause_ms = min(each.retry_at for each in self._waiting) - self._runtime.clock.now_ms()
            posted = asyncio.ensure_future(self._posted.wait())
            try:
                await first_of(self._runtime, [self._given_up, posted], max(1, pause_ms))
            finally:
                posted.cancel()

    async def _send_once(self, batch: list[Pending]) -> bool:
        """Return whether every verdict was answered, with whatever answer."""
        call = asyncio.ensure_future(self._link.messages.settle(self._ref, [each.verdict for each in batch]))
        try:
            await first_of(self._runtime, [call, self._given_up], None)
            if not call.done():
                return False
            results = call.result()
        except TROUBLE as error:
            self._reach.lose(error)
            return False
        except HoldfastError as error:  # refused as a whole: no repetition would help
            code = error.code
            results = [Result(snowflake=each.verdict.receipt.id, ok=False, error=code) for each in batch]
        except Exception as error:  # handlers wait for these verdicts: they are tried again until their leases end
            self._backoff.failed(error, verdicts=len(batch))
            return False
        finally:
            call.cancel()
        self._backoff.succeeded()
        self._reach.regain()
        return self.answer_all(batch, results)

    def _drop_hopeless(self) -> None:
        now_ms = self._runtime.clock.now_ms()
        is_over = self._given_up.done()
        for each in self._waiting:
            if is_over or each.lease_until <= now_ms:
                each.answer(None)
        self._waiting = [each for each in self._waiting if not each.answered.done()]
