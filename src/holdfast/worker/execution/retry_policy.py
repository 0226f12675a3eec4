"""Decide the verdict for a handler that did not succeed, by the handler's options and the queue's policy."""

from msgspec.structs import replace

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import Dice
from holdfast.model.answers import Info, Result
from holdfast.model.errors import HoldfastError, MessageNotFound
from holdfast.model.message import State
from holdfast.model.policy import QueuePolicy
from holdfast.model.requests import Settle, Verdict
from holdfast.model.rules.retry import backoff_ms
from holdfast.runtime import LoopRuntime
from holdfast.worker.context import log
from holdfast.worker.handlers import Options
from holdfast.worker.outcomes import FaultKind, HandlerFault
from holdfast.worker.verdict_sender import TROUBLE
from holdfast.worker.work import WorkMessage

# The queue's policy is read again after this time, because operators may change it while workers run.
FRESH_MS = 300_000


class RetryPolicy:
    """The retry policy of one handler."""

    def __init__(self, options: Options, client: AsyncHoldfast, runtime: LoopRuntime, dice: Dice) -> None:
        self._options = options
        self._client = client
        self._clock = runtime.clock
        self._dice = dice
        self._policy = QueuePolicy()
        self._read_at: int | None = None

    async def policy(self) -> QueuePolicy:
        """Return the queue's policy as last read, or the default policy if the worker may not read it."""
        now_ms = self._clock.now_ms()
        if self._read_at is None or now_ms - self._read_at >= FRESH_MS:
            self._read_at = now_ms
            ref = self._options.ref
            try:
                self._policy = await self._client.queue(ref.queue, tenant=ref.tenant).policy()
            except (HoldfastError, *TROUBLE):
                pass  # not urgent: only a warning and retries beyond the queue's depend on it
        return self._policy

    async def verdict_of(self, message: WorkMessage, fault: HandlerFault) -> Verdict:
        """Return the verdict for a fault."""
        receipt = message._held.delivery.receipt
        match fault.kind:
            case FaultKind.UNSTARTED:
                return Verdict(settle=Settle.RELEASE, receipt=receipt)
            case FaultKind.REJECT:
                return Verdict(settle=Settle.NACK, receipt=receipt, error=fault.text, final=True)
            case FaultKind.DEFER:
                return Verdict(
                    settle=Settle.NACK, receipt=receipt, error=fault.text, delay_ms=fault.delay_ms, defer=True
                )
            case FaultKind.FAILURE | FaultKind.RETRY:
                return await self._failure(message, fault)

    async def _failure(self, message: WorkMessage, fault: HandlerFault) -> Verdict:
        """Return a nack, which is final, with the reason `retries`, once the handler's own retries are used up.

        The handler's `retries` may exceed the queue's. While the queue has retries left, a failure is a plain nack, so
        that the queue's counts are right. After that the message is deferred, which the queue does not count as a
        failure, and the worker counts attempts instead.
        """
        receipt, retries = message._held.delivery.receipt, self._options.retries
        used = message.attempt - 1
        if retries is None:
            return self._nack(message, fault, used)
        policy = await self.policy()
        if used < min(retries, policy.max_retries):
            return self._nack(message, fault, used)
        # Attempts that were released, deferred or made before a redrive are no failures. The stored message has the
        # counts.
        info = await self._info(message)
        uncounted = 0
        if info is not None:
            used = info.failures + info.expiries
            uncounted = max(message.attempt - 1 - used - info.releases, 0)
        if used >= retries:
            return Verdict(settle=Settle.NACK, receipt=receipt, error=fault.text, final=True, exhausted=True)
        if used < policy.max_retries:
            return self._nack(message, fault, used)
        if used + uncounted >= retries:
            return Verdict(settle=Settle.NACK, receipt=receipt, error=fault.text, final=True, exhausted=True)
        delay_ms = self._delay_ms(fault, used + uncounted)
        if delay_ms is None:
            delay_ms = backoff_ms(used + uncounted, policy.backoff_base_ms, policy.backoff_cap_ms, self._dice.roll())
        return Verdict(settle=Settle.NACK, receipt=receipt, error=fault.text, delay_ms=delay_ms, defer=True)

    def _nack(self, message: WorkMessage, fault: HandlerFault, used: int) -> Verdict:
        receipt = message._held.delivery.receipt
        return Verdict(settle=Settle.NACK, receipt=receipt, error=fault.text, delay_ms=self._delay_ms(fault, used))

    def _delay_ms(self, fault: HandlerFault, used: int) -> int | None:
        if fault.delay_ms is not None:
            return fault.delay_ms
        try:
            return self._options.delay_ms(used, self._dice.roll())
        except Exception:  # `backoff` may be a function of the program
            log.exception("backoff_function_failed queue=%s: the queue's backoff is used", self._options.ref)
            return None

    async def clarify(self, message: WorkMessage, verdict: Verdict, result: Result) -> Result:
        """Find out whether a verdict that is now refused as stale was carried out by an earlier attempt.

        Call this if the earlier attempt got no response. Return a successful result if it was carried out. A message
        that no longer exists counts as acked: it will not be handled again, whoever finished it.
        """
        try:
            info = await self._client.queue(message.queue, tenant=message.tenant).get(str(message.id))
        except MessageNotFound:
            return replace(result, ok=True) if verdict.settle is Settle.ACK else result
        except (HoldfastError, *TROUBLE):
            return result
        is_taken = info.version == message.version and {
            Settle.ACK: info.state is State.SUCCEEDED,
            Settle.NACK: info.state in (State.READY, State.FAILED) and info.last_error == verdict.error,
            Settle.RELEASE: info.state is State.READY,
        }.get(verdict.settle, False)
        retry_at = info.visible_at if info.state is State.READY else None
        return replace(result, ok=True, state=info.state, retry_at=retry_at) if is_taken else result

    async def _info(self, message: WorkMessage) -> Info | None:
        try:
            return await self._client.queue(message.queue, tenant=message.tenant).get(str(message.id))
        except (HoldfastError, *TROUBLE):
            return None
