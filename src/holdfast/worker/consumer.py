"""Consume one queue: claim as many messages as the handler has free slots, and have them handled."""

import asyncio

from holdfast.client.message import describe
from holdfast.model.errors import InvalidArgument, Throttled
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.model.rules.retry import backoff_ms
from holdfast.worker.context import HEALTHY_MS, ConsumerContext, Reachability, first_of, log, restart_delay_ms
from holdfast.worker.execution.executor import Execution
from holdfast.worker.handlers import Handler, is_importable_here
from holdfast.worker.metrics import HandlerStats
from holdfast.worker.outcomes import Crash, HandlerDied, HandlerNotImportable, bounded
from holdfast.worker.queue_numbers import QueueFields
from holdfast.worker.verdict_sender import TROUBLE, Outbox, PendingVerdict
from holdfast.worker.work import InterruptReason, Slot, Work, WorkMessage


class Consumer:
    """The consumer of one queue."""

    def __init__(self, handler: Handler, context: ConsumerContext) -> None:
        self.handler = handler
        self._context = context
        self._runtime = context.runtime
        self._clock = context.runtime.clock
        self._outbox = Outbox(handler.options.ref, context)
        self._execution = Execution(handler, context, self._outbox)
        self.queue_fields = QueueFields(context.connection.client, handler.options.ref, self._runtime)
        # The slots in use, and the messages that are being handled. A slot may be free before its message is settled,
        # or still in use by a thread that does not end.
        self._used_slots = 0
        self._works: set[Work] = set()
        self._unsettled = 0
        self._changed = asyncio.Event()
        self._claim: asyncio.Task[list[WorkMessage]] | None = None
        self._failed_claims = 0
        self._start_error: str | None = None
        # The time since when it has been able to claim. Time spent on a slow and failing start must not count as
        # healthy.
        self._ready_at: int | None = None

    @property
    def free(self) -> int:
        """Return the number of free slots."""
        return self.handler.options.concurrency - self._used_slots

    @property
    def in_hand(self) -> int:
        """Return the number of messages that are being handled."""
        return len(self._works)

    def stats(self) -> HandlerStats:
        """Return the current statistics."""
        options = self.handler.options
        return HandlerStats(
            ref=options.ref,
            in_hand=self.in_hand,
            free=self.free,
            stuck_threads=self._execution.stuck.count,
            max_stuck_threads=options.max_stuck_threads,
        )

    @property
    def is_idle(self) -> bool:
        """Return whether no message is in hand and every verdict has a result."""
        return not self._unsettled

    async def check_import(self) -> None:
        """Start the first process of a handler whose function must be importable there.

        Raise `InvalidArgument` if it is not. A process that does not start for another reason is only logged: it is
        started again before the first claim.
        """
        if not self.handler.options.must_import or self._context.inline is not None:
            return
        if not is_importable_here(self.handler.function):
            raise self._not_importable("its name belongs to another object")
        try:
            await self._is_prepared()
        except HandlerNotImportable as error:
            raise self._not_importable(str(error)) from error
        except HandlerDied as error:
            log.warning("handler_process_failed handler=%s error=%s", self.handler.name, error)

    def _not_importable(self, why: str) -> InvalidArgument:
        return InvalidArgument(
            f'the handler {self.handler.name} of {self.handler.options.ref} has process="auto", but no process can '
            f"import it: {why}; define it with `def` at the top level of a module, or give it process=False",
            field="process",
        )

    # --- The loop ----------------------------------------------------------------------------------------------

    async def keep_running(self) -> None:
        """Run until the worker stops. Restart after a crash: three times at once, then with growing delays."""
        crashes = 0
        while not self._context.stop.is_requested:
            try:
                await self.run()
            except Exception as error:
                if self._ready_at is not None and self._clock.now_ms() - self._ready_at >= HEALTHY_MS:
                    crashes = 0
                crashes += 1
                delay_ms = restart_delay_ms(crashes)
                log.error(
                    "consumer_crashed queue=%s restarts_in_s=%g",
                    self.handler.options.ref,
                    delay_ms / 1_000,
                    exc_info=error,
                    extra=self.queue_fields.fields(),
                )
                await self._report_crash(error, crashes, delay_ms)
                # Even a restart at once lets other tasks run first.
                await self._sleep(delay_ms) if delay_ms else await asyncio.sleep(0)

    async def _report_crash(self, error: Exception, count: int, delay_ms: int) -> None:
        tenant, queue = self.handler.options.ref
        crash = Crash(tenant=tenant, queue=queue, error=error, count=count, delay_s=delay_ms / 1_000)
        await self._context.hooks.notify("on_crash", crash)

    async def run(self) -> None:
        """Claim and start messages until the worker stops. Raise `RuntimeError` if a handler could not start."""
        self._ready_at = None
        try:
            while not self._context.stop.is_requested:
                if not self.free:
                    await self._until_changed()
                elif self._start_error is not None:
                    text, self._start_error = self._start_error, None
                    raise RuntimeError(text)
                elif await self._is_prepared():
                    await self.claim_once(self._context.connection.wait_ms)
                    # The next claim is made as soon as there is a free slot.
                    self._outbox.expect_claim()
        finally:
            self._outbox.expect_no_claim()

    async def _is_prepared(self) -> bool:
        """Prepare to run a handler. Return False if the worker was told to stop meanwhile."""
        if not self._execution.is_ready:
            # Preparing may take long, and verdicts must not wait for the claim after it.
            self._outbox.expect_no_claim()
            preparing = asyncio.ensure_future(self._execution.prepare())
            try:
                await first_of(self._runtime, [preparing, self._context.stop.requested], None)
                if not preparing.done():
                    return False
                preparing.result()
            finally:
                preparing.cancel()
        if self._ready_at is None:
            self._ready_at = self._clock.now_ms()
        return True

    async def claim_once(self, wait_ms: int) -> int:
        """Claim messages once and start their handlers. Return the number of messages.

        If verdicts are waiting, the claim carries them and does not wait for messages.
        """
        options = self.handler.options
        claim_request = ClaimRequest(
            limit=self.free,
            lease_ms=options.lease_ms,
            owner=self._context.owner,
            with_state=options.with_state,
            # `Execution` reads a large payload before the handler starts, if the handler needs it whole.
            streams=True,
        )
        pending = self._outbox.take()
        if not pending:
            # The claim may wait long, and verdicts that are posted meanwhile must not wait for it.
            self._outbox.expect_no_claim()
        try:
            messages = await self._claim_messages(claim_request, 0 if pending else wait_ms, pending)
        except TROUBLE as error:
            await self._lost(error, pending)
            return 0
        except BaseException:
            self._outbox.put_back(pending)
            raise
        self._context.reachability.regain()
        self._failed_claims = 0
        for message in messages:
            self._begin(message)
        return len(messages)

    async def _claim_messages(
        self, claim_request: ClaimRequest, wait_ms: int, pending: list[PendingVerdict]
    ) -> list[WorkMessage]:
        connection, ref = self._context.connection, self.handler.options.ref
        if pending:
            results, messages = await connection.exchange(ref, [each.verdict for each in pending], claim_request)
            if not self._outbox.answer_all(pending, results):
                # Verdicts that the store could not write are retried, with delays, by calls of their own.
                self._outbox.postpone(pending)
                self._outbox.expect_no_claim()
            return messages
        self._claim = claim = asyncio.ensure_future(connection.claim(ref, claim_request, wait_ms))
        try:
            await asyncio.wait({claim})
        except asyncio.CancelledError:
            claim.cancel()
            raise
        finally:
            self._claim = None
        if claim.cancelled():
            return []
        return claim.result()

    async def _lost(self, error: BaseException, pending: list[PendingVerdict]) -> None:
        self._context.reachability.lose(error)
        if isinstance(error, Throttled) and not self._failed_claims:
            fields = self.queue_fields.fields()
            log.warning("claims_throttled queue=%s error=%s", self.handler.options.ref, error, extra=fields)
        self._outbox.put_back(pending)
        self._outbox.expect_no_claim()
        roll = self._context.dice.roll()
        delay_ms = 1 + backoff_ms(self._failed_claims, Reachability.BASE_MS, Reachability.CAP_MS, roll)
        self._failed_claims += 1
        await self._sleep(max(delay_ms, error.retry_after_ms) if isinstance(error, Throttled) else delay_ms)

    async def _until_changed(self) -> None:
        self._changed.clear()
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await first_of(self._runtime, [changed, self._context.stop.requested], None)
        finally:
            changed.cancel()

    async def _sleep(self, ms: int) -> None:
        await first_of(self._runtime, [self._context.stop.requested], ms)

    # --- Messages in hand --------------------------------------------------------------------------------------

    def _begin(self, message: WorkMessage) -> None:
        work = Work(message, self._clock.now_ms(), self.handler.options.lease_ms, self.queue_fields)
        self._used_slots += 1
        self._unsettled += 1
        self._works.add(work)
        self._runtime.spawn(self._work(work, Slot(self._slot_freed)))

    async def _work(self, work: Work, slot: Slot) -> None:
        try:
            await self._execution.execute(work, slot)
        except Exception as error:
            # The worker's own error, not the handler's. It counts as a failure, or it could repeat without end.
            log.exception("message_not_handled queue=%s", self.handler.options.ref, extra=work.facts())
            self._nack(work, f"the worker failed: {describe(error)}")
            slot.free()
        finally:
            self._works.discard(work)
            self._unsettled -= 1
            self._changed.set()

    def _nack(self, work: Work, text: str) -> None:
        held = work.message._held
        if not held.is_settled and not work.is_lost:
            held.is_settled = True
            verdict = Verdict(settle=Settle.NACK, receipt=held.delivery.receipt, error=bounded(text))
            self._outbox.post(verdict, work.lease_until, at_once=True)

    def _slot_freed(self, start_error: str | None) -> None:
        self._start_error = start_error or self._start_error
        self._used_slots -= 1
        self._changed.set()

    # --- Stopping ----------------------------------------------------------------------------------------------

    def stop_claiming(self) -> None:
        """Cancel the current claim, if it can be cancelled."""
        if self._claim is not None and self._context.connection.is_cancellable:
            self._claim.cancel()

    def interrupt_all(self) -> None:
        """Tell all handlers to stop; their messages go back uncounted."""
        for work in self._works:
            work.interrupt(InterruptReason.STOPPING, "the worker is stopping")

    async def until_idle(self) -> None:
        """Wait until no message is in hand and every verdict has a result."""
        while not self.is_idle:
            self._changed.clear()
            await self._changed.wait()

    def give_up(self) -> None:
        """Stop retrying verdicts."""
        self._outbox.give_up()

    def close(self) -> None:
        """End the threads or processes of the handler."""
        self._execution.close()
