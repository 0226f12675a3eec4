"""Send verdicts: with the next claim if one is about to be made, otherwise at once, several in one call."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.background import Backoff
from holdfast.model.answers import Result
from holdfast.model.errors import HoldfastError, Throttled, Unavailable
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.model.rules.retry import backoff_ms
from holdfast.worker.context import ConsumerContext, first_of

# Errors after which the same call may succeed later.
TROUBLE = (Unavailable, Throttled, OSError, TimeoutError)

RETRY_BASE_MS = 50
RETRY_CAP_MS = 2_000


class PendingVerdict:
    """A verdict without a result yet. The result None means that it could not be delivered while the lease lasted."""

    __slots__ = ("answered", "failures", "is_repeated", "lease_until", "retry_at", "verdict")

    def __init__(self, verdict: Verdict, lease_until: int) -> None:
        self.verdict = verdict
        # The verdict is not sent after the lease has ended, because it would be stale.
        self.lease_until = lease_until
        # Whether it was sent before without a response, so that it may already have been carried out.
        self.is_repeated = False
        # The number of failed attempts to deliver it, and the time of the next one.
        self.failures = 0
        self.retry_at = 0
        self.answered: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()

    def answer(self, result: Result | None) -> None:
        """Set the result. A failure after an earlier attempt without a response is marked as unsure."""
        if not self.answered.done():
            if self.is_repeated and result is not None and not result.ok:
                result = replace(result, is_unsure=True)
            self.answered.set_result(result)


class Outbox:
    """The verdicts of one queue that are waiting to be sent."""

    def __init__(self, ref: QueueRef, context: ConsumerContext) -> None:
        self._ref = ref
        self._connection = context.connection
        self._runtime = context.runtime
        self._dice = context.dice
        self._reachability = context.reachability
        self._waiting: list[PendingVerdict] = []
        self._is_sending = False
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Whether a claim is about to be made, which will carry the waiting verdicts.
        self._is_claim_expected = False
        # Set when a verdict is posted, so that it need not wait for the retry of another one.
        self._posted = asyncio.Event()
        self._backoff = Backoff("outbox", queue=ref)

    def post(self, verdict: Verdict, lease_until: int, *, at_once: bool = False) -> "asyncio.Future[Result | None]":
        """Queue a verdict, and return the future of its result.

        It is sent now if no claim is expected that could carry it, or with `at_once`.
        """
        pending = PendingVerdict(verdict, lease_until)
        self._waiting.append(pending)
        self._posted.set()
        if at_once or not self._is_claim_expected:
            self._send()
        return pending.answered

    def take(self) -> list[PendingVerdict]:
        """Take the waiting verdicts that are due, to be sent by the caller."""
        now_ms = self._runtime.clock.now_ms()
        taken = [each for each in self._waiting if each.retry_at <= now_ms][:MAX_BATCH]
        chosen = set(taken)
        self._waiting = [each for each in self._waiting if each not in chosen]
        return taken

    def put_back(self, taken: list[PendingVerdict]) -> None:
        """Put back the verdicts of a failed call that have no result yet."""
        for each in taken:
            each.is_repeated = True
        self._waiting[:0] = [each for each in taken if not each.answered.done()]

    def postpone(self, taken: list[PendingVerdict]) -> None:
        """Put back verdicts that have no result yet, each with its own delay before the next attempt."""
        now_ms = self._runtime.clock.now_ms()
        for each in taken:
            each.retry_at = now_ms + 1 + backoff_ms(each.failures, RETRY_BASE_MS, RETRY_CAP_MS, self._dice.roll())
            each.failures += 1
        self.put_back(taken)

    def answer_all(self, batch: Sequence[PendingVerdict], results: Sequence[Result]) -> bool:
        """Set the result of each verdict, except of those that the store could not write, which may be sent again.

        Return whether all verdicts have a result. The caller puts the others back.
        """
        for each, result in zip(batch, results, strict=True):
            if not result.is_retryable:
                each.answer(result)
        return all(each.answered.done() for each in batch)

    def expect_claim(self) -> None:
        """Keep verdicts from now on for a claim that is about to be made."""
        self._is_claim_expected = True

    def expect_no_claim(self) -> None:
        """Send waiting verdicts by calls of their own, because no claim will be made for a while."""
        self._is_claim_expected = False
        self._send()

    def give_up(self) -> None:
        """Retry nothing any more; the leases of unsettled messages will expire."""
        if not self._given_up.done():
            self._given_up.set_result(None)

    def _send(self) -> None:
        # One call at a time. Verdicts that are posted meanwhile are sent together by the next call.
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
        """Wait until a verdict is due, another one is posted, or the worker gives up."""
        if self._waiting and not self._given_up.done():
            pause_ms = min(each.retry_at for each in self._waiting) - self._runtime.clock.now_ms()
            posted = asyncio.ensure_future(self._posted.wait())
            try:
                await first_of(self._runtime, [self._given_up, posted], max(1, pause_ms))
            finally:
                posted.cancel()

    async def _send_once(self, batch: list[PendingVerdict]) -> bool:
        """Send verdicts in one call. Return whether each has a result now, be it a failure."""
        call = asyncio.ensure_future(self._connection.messages.settle(self._ref, [each.verdict for each in batch]))
        try:
            await first_of(self._runtime, [call, self._given_up], None)
            if not call.done():
                return False
            results = call.result()
        except TROUBLE as error:
            self._reachability.lose(error)
            return False
        except HoldfastError as error:  # the whole call was refused, so a retry would not help
            code = error.code
            results = [Result(snowflake=each.verdict.receipt.id, ok=False, error=code) for each in batch]
        except Exception as error:  # handlers wait for these results, so the verdicts are retried until the leases end
            self._backoff.failed(error, verdicts=len(batch))
            return False
        finally:
            call.cancel()
        self._backoff.succeeded()
        self._reachability.regain()
        return self.answer_all(batch, results)

    def _drop_hopeless(self) -> None:
        now_ms = self._runtime.clock.now_ms()
        is_over = self._given_up.done()
        for each in self._waiting:
            if is_over or each.lease_until <= now_ms:
                each.answer(None)
        self._waiting = [each for each in self._waiting if not each.answered.done()]
