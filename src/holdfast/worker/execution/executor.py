"""Handle a claimed message: run its handler, send the verdict, and report the outcome."""

import asyncio
import logging
from typing import assert_never

from holdfast.client.message import describe
from holdfast.clock import steady_s
from holdfast.model.answers import Result
from holdfast.model.errors import Internal
from holdfast.model.message import State
from holdfast.model.requests import Settle, Verdict
from holdfast.worker.context import ConsumerContext, first_of, log
from holdfast.worker.execution.function_runners import (
    HandlerRunner,
    InlineRunner,
    LoopRunner,
    RunningHandler,
)
from holdfast.worker.execution.heartbeat import Heartbeat
from holdfast.worker.execution.retry_policy import RetryPolicy
from holdfast.worker.execution.threads import InThread, StuckThreads, ThreadRunner
from holdfast.worker.handlers import Handler, Pool, startup_timeout_error
from holdfast.worker.outcomes import FaultKind, HandlerFault, LeaseLost, Outcome, OutcomeKind, fault_of
from holdfast.worker.verdict_sender import TROUBLE, Outbox
from holdfast.worker.work import Interruption, InterruptReason, Slot, Work

# The time that a handler has to end after it was told to stop. After that the worker continues without it.
CLEANUP_MS = 5_000
HURRIED_CLEANUP_MS = 1_000


class Execution:
    """The execution of one handler. The consumer decides how many messages it handles at once."""

    def __init__(self, handler: Handler, context: ConsumerContext, outbox: Outbox) -> None:
        self._handler = handler
        self._context = context
        self._runtime = context.runtime
        self._outbox = outbox
        options = handler.options
        self._retry_policy = RetryPolicy(options, context.connection.client, context.runtime, context.dice)
        self._heartbeat = Heartbeat(options.ref, options.lease_ms, context, self._retry_policy)
        self._runner = _make_runner(handler, context)
        self.stuck = StuckThreads(handler, context.stop)

    @property
    def is_ready(self) -> bool:
        """Return whether a handler can start at once."""
        return self._runner.is_ready

    async def prepare(self) -> None:
        """Prepare to start a handler, before a message is claimed. Raise `HandlerDied` if its process cannot start."""
        await self._runner.prepare(self._handler)

    def close(self) -> None:
        """End idle threads and processes."""
        self._runner.close()

    async def execute(self, work: Work, slot: Slot) -> None:
        """Run the handler, settle the message and call the hooks. Free the slot as soon as it can be used again."""
        began_s = steady_s()
        self._heartbeat.add(work)
        try:
            fault, running = await self._run(work)
            verdict = await self._judge(work, fault)
            interruption = work.interruption
        finally:
            self._heartbeat.remove(work)
        is_abandoned = running is not None and not running.ended.done()
        pending_result = None
        if verdict is not None:
            # A slot that stays in use causes no claim that could carry the verdict, so it is sent at once.
            pending_result = self._outbox.post(verdict, work.lease_until, at_once=is_abandoned)
            work.message._held.is_settled = True
        if is_abandoned and running is not None:
            self._leave_behind(work, running, slot)
        else:
            is_unstarted = fault is not None and fault.kind is FaultKind.UNSTARTED and interruption is None
            # In the same event-loop step as the post above, so that the claim for the free slot carries the verdict.
            slot.free(fault.text if fault is not None and is_unstarted else None)
        result = None if pending_result is None else await pending_result
        if verdict is not None and result is not None and not result.ok and result.is_unsure:
            result = await self._retry_policy.clarify(work.message, verdict, result)
        if verdict is None and interruption is None and work.message.is_lost:
            # The handler gave a verdict of its own, which was refused because the lease was lost.
            interruption = Interruption(InterruptReason.LOST, work.message._held.lost or "")
        outcome = _outcome_of(verdict, result, fault, interruption, steady_s() - began_s)
        await self._report(work, outcome, fault)

    # --- The handler -------------------------------------------------------------------------------------------

    async def _run(self, work: Work) -> tuple[HandlerFault | None, RunningHandler | None]:
        # A handler process reads and decodes the payload itself.
        is_elsewhere = self._handler.options.pool is Pool.PROCESS and self._context.inline is None
        if work.message._held.delivery.pieces is not None and not is_elsewhere and self._wants_whole():
            fault = await self._load(work)
            if fault is not None or work.interruption is not None:
                return fault, None
        try:
            payload = None if is_elsewhere else self._handler.signature.decode(work.message._held.delivery)
            await self._context.hooks.call("before", work.message)
        except Exception as error:
            return fault_of(error), None
        if work.interruption is not None:
            return None, None
        running = self._runner.start(self._handler, work, payload)
        if running.begun is not None and (fault := await self._begin(work, running, running.begun)) is not None:
            return fault, running
        timer = None
        if (timeout_ms := self._handler.options.timeout_ms) is not None:
            text = f"timeout: still running after {timeout_ms / 1_000:g} s"
            timer = self._runtime.call_at(
                self._runtime.clock.now_ms() + timeout_ms, lambda: work.interrupt(InterruptReason.TIMEOUT, text)
            )
        try:
            await first_of(self._runtime, [running.ended, work.interrupted], None)
        finally:
            if timer is not None:
                timer.cancel()
        if running.ended.done():
            work.clear_interruption()  # it has ended in the same moment in which it was told to stop
            return running.ended.result(), running
        running.interrupt(work.interrupt_exception())
        if running.has_cleanup:
            is_hurried = self._context.stop.hurried.done()
            await first_of(self._runtime, [running.ended], HURRIED_CLEANUP_MS if is_hurried else CLEANUP_MS)
        return None, running

    async def _begin(self, work: Work, running: RunningHandler, begun: "asyncio.Future[None]") -> HandlerFault | None:
        """Wait until the handler starts, when its timeout begins. Return the fault if it does not start in time."""
        startup_ms = self._handler.options.startup_timeout_ms
        await first_of(self._runtime, [begun, running.ended, work.interrupted], startup_ms)
        if begun.done() or running.ended.done() or work.interruption is not None:
            return None
        error = startup_timeout_error(self._handler)
        running.interrupt(error)
        await first_of(self._runtime, [running.ended], CLEANUP_MS)
        return HandlerFault(FaultKind.UNSTARTED, str(error), None, error)

    def _wants_whole(self) -> bool:
        """Return whether a large payload must be in memory before the handler starts."""
        options = self._handler.options
        return self._handler.signature.payload is not None or (options.pool is Pool.LOOP and not options.streams)

    async def _load(self, work: Work) -> HandlerFault | None:
        loading = asyncio.ensure_future(work.message.load())
        try:
            await first_of(self._runtime, [loading, work.interrupted], None)
            if not loading.done():
                return None  # it was told to stop before the handler started
            loading.result()
        except LeaseLost as error:
            work.interrupt(InterruptReason.LOST, error.message)
        except Internal as error:  # the stored payload is damaged, so the message fails
            return fault_of(error)
        except TROUBLE as error:
            return HandlerFault(FaultKind.UNSTARTED, f"the payload could not be read: {describe(error)}", None, error)
        except Exception as error:
            return fault_of(error)
        finally:
            loading.cancel()
        return None

    def _leave_behind(self, work: Work, running: RunningHandler, slot: Slot) -> None:
        is_stopping = work.interruption is not None and work.interruption.reason is InterruptReason.STOPPING
        if self._handler.options.pool is Pool.THREAD and isinstance(running, InThread) and not is_stopping:
            if self.stuck.add(work, running):
                slot.free()
        else:
            self._warn_of(work)
        running.ended.add_done_callback(lambda _: slot.free())

    def _warn_of(self, work: Work) -> None:
        log.warning(
            "handler_still_running handler=%s interruption=%r: its slot stays in use until it ends; do not suppress "
            "CancelledError in an `async def`",
            self._handler.name,
            "" if work.interruption is None else work.interruption.text,
            extra=work.facts(),
        )

    # --- The verdict -------------------------------------------------------------------------------------------

    async def _judge(self, work: Work, fault: HandlerFault | None) -> Verdict | None:
        """Return the verdict to send, or None if the handler gave one itself or the lease is lost."""
        held = work.message._held
        if held.is_settled:
            return None
        receipt = held.delivery.receipt
        match work.interruption:
            case Interruption(reason=InterruptReason.LOST):
                return None
            case Interruption(reason=InterruptReason.STOPPING):
                return Verdict(settle=Settle.RELEASE, receipt=receipt)
            case Interruption(reason=InterruptReason.TIMEOUT, text=text):
                return await self._retry_policy.verdict_of(work.message, HandlerFault(FaultKind.FAILURE, text))
            case _ if fault is None:
                return Verdict(settle=Settle.ACK, receipt=receipt)
            case _:
                return await self._retry_policy.verdict_of(work.message, fault)

    # --- Reporting the outcome ---------------------------------------------------------------------------------

    async def _report(self, work: Work, outcome: Outcome, fault: HandlerFault | None) -> None:
        self._log(work, outcome, fault)
        hooks = self._context.hooks
        if outcome.kind is OutcomeKind.LOST:
            await hooks.notify("on_lost", work.message, outcome)
        elif outcome.kind in (OutcomeKind.RETRIED, OutcomeKind.FAILED):
            await hooks.notify("on_error", work.message, outcome)
        await hooks.notify("after", work.message, outcome)

    def _log(self, work: Work, outcome: Outcome, fault: HandlerFault | None) -> None:
        is_quiet = outcome.kind in (OutcomeKind.SUCCEEDED, OutcomeKind.SETTLED, OutcomeKind.DEFERRED)
        if is_quiet and not log.isEnabledFor(logging.DEBUG):
            return
        facts, name = work.facts(), self._handler.name
        match outcome.kind:
            case OutcomeKind.SUCCEEDED | OutcomeKind.SETTLED | OutcomeKind.DEFERRED:
                log.debug("message_%s handler=%s", outcome.kind, name, extra=facts)
            case OutcomeKind.RELEASED:
                log.info("message_released handler=%s", name, extra=facts)
            case OutcomeKind.RETRIED | OutcomeKind.FAILED:
                is_surprise = fault is not None and fault.kind is FaultKind.FAILURE
                where = f"\n{fault.traceback}" if fault is not None and fault.traceback and is_surprise else ""
                exception = outcome.exception if is_surprise and not where else None
                log.warning(
                    "message_%s handler=%s error=%s%s",
                    outcome.kind,
                    name,
                    outcome.error,
                    where,
                    exc_info=exception,
                    extra=facts,
                )
            case OutcomeKind.LOST:
                log.warning("message_lost handler=%s error=%s", name, outcome.error, extra=facts)
            case _:
                assert_never(outcome.kind)


def _make_runner(handler: Handler, context: ConsumerContext) -> HandlerRunner:
    pool = handler.options.pool
    if pool is Pool.LOOP:
        return LoopRunner()
    if context.inline is not None:
        return InlineRunner(context.inline)
    if pool is Pool.THREAD:
        return ThreadRunner(handler.name)
    # Imported only if needed, because it imports multiprocessing.
    from holdfast.worker.execution.processes import ProcessRunner

    return ProcessRunner(handler.name, context.runtime)


def _outcome_of(
    verdict: Verdict | None,
    result: Result | None,
    fault: HandlerFault | None,
    interruption: Interruption | None,
    seconds: float,
) -> Outcome:
    exception = None if fault is None else fault.exception
    if interruption is not None and interruption.reason is InterruptReason.LOST:
        return Outcome(kind=OutcomeKind.LOST, error=interruption.text, exception=exception, seconds=seconds)
    if verdict is None:
        return Outcome(kind=OutcomeKind.SETTLED, exception=exception, seconds=seconds)
    if result is None or not result.ok:
        text = "got no response" if result is None else f"failed with {result.error}"
        if result is not None and result.is_unsure:
            text += ", perhaps because an earlier attempt succeeded and its response was lost"
        return Outcome(
            kind=OutcomeKind.LOST, error=f"the {verdict.settle} {text}", exception=exception, seconds=seconds
        )
    kind = _kind_of(verdict, result)
    return Outcome(kind=kind, error=verdict.error, exception=exception, seconds=seconds, retry_at=result.retry_at)


def _kind_of(verdict: Verdict, result: Result) -> OutcomeKind:
    match verdict.settle:
        case Settle.ACK:
            return OutcomeKind.SUCCEEDED
        case Settle.RELEASE:
            return OutcomeKind.RELEASED
        case _ if verdict.final or result.state is State.FAILED:
            return OutcomeKind.FAILED
        case _ if verdict.defer:
            return OutcomeKind.DEFERRED
        case _:
            return OutcomeKind.RETRIED
