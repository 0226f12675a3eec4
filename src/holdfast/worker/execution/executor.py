"""From a claimed message to its outcome."""

import asyncio
import logging
from typing import assert_never

from holdfast.client.message import describe
from holdfast.clock import steady_s
from holdfast.model.answers import Result
from holdfast.model.errors import Internal
from holdfast.model.message import State
from holdfast.model.requests import Settle, Verdict
from holdfast.worker.consuming.crew import ConsumerContext
from holdfast.worker.consuming.slots import Slot
from holdfast.worker.consuming.verdict_sender import TROUBLE, Outbox
from holdfast.worker.consuming.waiting import first_of, log
from holdfast.worker.exceptions import LeaseLost
from holdfast.worker.execution.function_runners import InlineWay, InThread, LoopWay, Running, ThreadWay, Way
from holdfast.worker.execution.heartbeat import Heartbeat
from holdfast.worker.execution.retry_policy import RetryPolicy
from holdfast.worker.execution.stuck import StuckThreads
from holdfast.worker.handlers import Handler, late_start
from holdfast.worker.options import Pool
from holdfast.worker.outcome import FaultKind, HandlerFault, Outcome, OutcomeKind, fault_of
from holdfast.worker.work import Interruption, Why, Work

# How long a handler that was told to stop may take to do so, before it is left to itself.
CLEANUP_MS = 5_000
HURRIED_CLEANUP_MS = 1_000


class Execution:
    """Runs one handler's messages; the consumer decides how many at once."""

    def __init__(self, handler: Handler, crew: ConsumerContext, outbox: Outbox) -> None:
        self._handler = handler
        self._crew = crew
        self._runtime = crew.runtime
        self._outbox = outbox
        options = handler.options
        self._terms = RetryPolicy(options, crew.link.client, crew.runtime, crew.dice)
        self._heartbeat = Heartbeat(
            options.ref, options.lease_ms, crew.link, crew.runtime, crew.dice, crew.reach, self._terms
        )
        self._way = _way_of(handler, crew)
        self.stuck = StuckThreads(handler, crew.stop)

    @property
    def is_ready(self) -> bool:
        """A handler could begin at once."""
        return self._way.is_ready

    async def prepare(self) -> None:
        """Start what the handler runs in before a message is claimed; raise if that fails."""
        await self._way.prepare(self._handler)

    def close(self) -> None:
        self._way.close()

    async def execute(self, work: Work, slot: Slot) -> None:
        """Run the handler, settle, tell the hooks. The slot is freed as soon as the next message may come."""
        began_s = steady_s()
        self._heartbeat.add(work)
        try:
            fault, running = await self._run(work)
            verdict = await self._judge(work, fault)
            interruption = work.interruption
        finally:
            self._heartbeat.remove(work)
        is_abandoned = running is not None and not running.ended.done()
        answered = None
        if verdict is not None:
            # A slot that stays taken makes no claim on which the verdict could ride.
            answered = self._outbox.post(verdict, work.lease_until, at_once=is_abandoned)
            work.message._held.is_settled = True
        if is_abandoned and running is not None:
            self._leave_behind(work, running, slot)
        else:
            is_unstarted = fault is not None and fault.kind is FaultKind.UNSTARTED and interruption is None
            # In the same step as the post above: the claim that fills the slot then carries the verdict.
            slot.free(fault.text if fault is not None and is_unstarted else None)
        result = None if answered is None else await answered
        if verdict is not None and result is not None and not result.ok and result.is_unsure:
            result = await self._terms.clarify(work.message, verdict, result)
        if verdict is None and interruption is None and work.message.is_lost:
            # The handler itself was told, when it gave a verdict of its own.
            interruption = Interruption(Why.LOST, work.message._held.lost or "")
        outcome = _outcome_of(verdict, result, fault, interruption, steady_s() - began_s)
        await self._tell(work, outcome, fault)

    # --- The handler -------------------------------------------------------------------------------------------

    async def _run(self, work: Work) -> tuple[HandlerFault | None, Running | None]:
        # In a process of its own it is read and decoded there.
        is_elsewhere = self._handler.options.pool is Pool.PROCESS and self._crew.inline is None
        if work.message._held.delivery.pieces is not None and not is_elsewhere and self._wants_whole():
            fault = await self._load(work)
            if fault is not None or work.interruption is not None:
                return fault, None
        try:
            payload = None if is_elsewhere else self._handler.signature.decode(work.message._held.delivery)
            await self._crew.hooks.call("before", work.message)
        except Exception as error:
            return fault_of(error), None
        if work.interruption is not None:
            return None, None
        running = self._way.start(self._handler, work, payload)
        if running.begun is not None and (fault := await self._begin(work, running, running.begun)) is not None:
            return fault, running
        timer = None
        if (timeout_ms := self._handler.options.timeout_ms) is not None:
            text = f"timeout: still running after {timeout_ms / 1_000:g} s"
            timer = self._runtime.call_at(
                self._runtime.clock.now_ms() + timeout_ms, lambda: work.interrupt(Why.TIMEOUT, text)
            )
        try:
            await first_of(self._runtime, [running.ended, work.interrupted], None)
        finally:
            if timer is not None:
                timer.cancel()
        if running.ended.done():
            work.forgive()  # told to stop in the same instant, it made it
            return running.ended.result(), running
        running.interrupt(work.why_interrupted())
        if running.has_cleanup:
            is_hurried = self._crew.stop.hurried.done()
            await first_of(self._runtime, [running.ended], HURRIED_CLEANUP_MS if is_hurried else CLEANUP_MS)
        return None, running

    async def _begin(self, work: Work, running: Running, begun: "asyncio.Future[None]") -> HandlerFault | None:
        """Wait until the handler begins: its timeout counts from there. Return why it did not within its time."""
        startup_ms = self._handler.options.startup_timeout_ms
        await first_of(self._runtime, [begun, running.ended, work.interrupted], startup_ms)
        if begun.done() or running.ended.done() or work.interruption is not None:
            return None
        error = late_start(self._handler)
        running.interrupt(error)
        await first_of(self._runtime, [running.ended], CLEANUP_MS)
        return HandlerFault(FaultKind.UNSTARTED, str(error), None, error)

    def _wants_whole(self) -> bool:
        """Whether a large payload must be in memory before the handler begins."""
        options = self._handler.options
        return self._handler.signature.payload is not None or (options.pool is Pool.LOOP and not options.streams)

    async def _load(self, work: Work) -> HandlerFault | None:
        loading = asyncio.ensure_future(work.message.load())
        try:
            await first_of(self._runtime, [loading, work.interrupted], None)
            if not loading.done():
                return None  # told to stop before it began
            loading.result()
        except LeaseLost as error:
            work.interrupt(Why.LOST, error.message)
        except Internal as error:  # the payload itself is wrong: that is for whoever sees to the dead letters
            return fault_of(error)
        except TROUBLE as error:
            return HandlerFault(FaultKind.UNSTARTED, f"the payload could not be read: {describe(error)}", None, error)
        except Exception as error:
            return fault_of(error)
        finally:
            loading.cancel()
        return None

    def _leave_behind(self, work: Work, running: Running, slot: Slot) -> None:
        is_stopping = work.interruption is not None and work.interruption.why is Why.STOPPING
        if self._handler.options.pool is Pool.THREAD and isinstance(running, InThread) and not is_stopping:
            if self.stuck.add(work, running):
                slot.free()
        else:
            self._warn_of(work)
        running.ended.add_done_callback(lambda _: slot.free())

    def _warn_of(self, work: Work) -> None:
        log.warning(
            "%s goes on although it was told to stop (%s): its slot stays taken until it ends. "
            "Let CancelledError pass in an `async def`",
            self._handler.name,
            "" if work.interruption is None else work.interruption.text,
            extra=work.facts(),
        )

    # --- The verdict -------------------------------------------------------------------------------------------

    async def _judge(self, work: Work, fault: HandlerFault | None) -> Verdict | None:
        """None: nothing is to be said, by us or any more."""
        held = work.message._held
        if held.is_settled:
            return None
        receipt = held.delivery.receipt
        match work.interruption:
            case Interruption(why=Why.LOST):
                return None
            case Interruption(why=Why.STOPPING):
                return Verdict(settle=Settle.RELEASE, receipt=receipt)
            case Interruption(why=Why.TIMEOUT, text=text):
                return await self._terms.verdict_of(work.message, HandlerFault(FaultKind.FAILURE, text))
            case _ if fault is None:
                return Verdict(settle=Settle.ACK, receipt=receipt)
            case _:
                return await self._terms.verdict_of(work.message, fault)

    # --- Telling of it -----------------------------------------------------------------------------------------

    async def _tell(self, work: Work, outcome: Outcome, fault: HandlerFault | None) -> None:
        self._log(work, outcome, fault)
        hooks = self._crew.hooks
        if outcome.kind is OutcomeKind.LOST:
            await hooks.tell("on_lost", work.message, outcome)
        elif outcome.kind in (OutcomeKind.RETRIED, OutcomeKind.FAILED):
            await hooks.tell("on_error", work.message, outcome)
        await hooks.tell("after", work.message, outcome)

    def _log(self, work: Work, outcome: Outcome, fault: HandlerFault | None) -> None:
        is_quiet = outcome.kind in (OutcomeKind.SUCCEEDED, OutcomeKind.SETTLED, OutcomeKind.DEFERRED)
        if is_quiet and not log.isEnabledFor(logging.DEBUG):
            return
        facts, name = work.facts(), self._handler.name
        match outcome.kind:
            case OutcomeKind.SUCCEEDED | OutcomeKind.SETTLED | OutcomeKind.DEFERRED:
                log.debug("%s: %s", name, outcome.kind, extra=facts)
            case OutcomeKind.RELEASED:
                log.info("%s: released", name, extra=facts)
            case OutcomeKind.RETRIED | OutcomeKind.FAILED:
                is_surprise = fault is not None and fault.kind is FaultKind.FAILURE
                where = f"\n{fault.traceback}" if fault is not None and fault.traceback and is_surprise else ""
                exception = outcome.exception if is_surprise and not where else None
                log.warning("%s: %s: %s%s", name, outcome.kind, outcome.error, where, exc_info=exception, extra=facts)
            case OutcomeKind.LOST:
                log.warning("%s: lost its lease: %s", name, outcome.error, extra=facts)
            case _:
                assert_never(outcome.kind)


def _way_of(handler: Handler, crew: ConsumerContext) -> Way:
    pool = handler.options.pool
    if pool is Pool.LOOP:
        return LoopWay()
    if crew.inline is not None:
        return InlineWay(crew.inline)
    if pool is Pool.THREAD:
        return ThreadWay(handler.name)
    from holdfast.worker.execution.processes import ProcessWay  # here: it brings multiprocessing along

    return ProcessWay(handler.name, crew.runtime)


def _outcome_of(
    verdict: Verdict | None,
    result: Result | None,
    fault: HandlerFault | None,
    interruption: Interruption | None,
    seconds: float,
) -> Outcome:
    exception = None if fault is None else fault.exception
    if interruption is not None and interruption.why is Why.LOST:
        return Outcome(kind=OutcomeKind.LOST, error=interruption.text, exception=exception, seconds=seconds)
    if verdict is None:
        return Outcome(kind=OutcomeKind.SETTLED, exception=exception, seconds=seconds)
    if result is None or not result.ok:
        said = "no answer" if result is None else f"the answer was {result.error}"
        if result is not None and result.is_unsure:
            said += ", perhaps because an earlier try was taken and its answer lost"
        return Outcome(
            kind=OutcomeKind.LOST, error=f"its {verdict.settle}: {said}", exception=exception, seconds=seconds
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
