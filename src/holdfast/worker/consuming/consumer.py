"""One handler's share of the worker: claims no more than it has free slots, and hands on what it gets."""

import asyncio

from holdfast.client.message import describe
from holdfast.model.errors import Throttled
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.model.rules.retry import backoff_ms
from holdfast.worker.consuming.crew import ConsumerContext
from holdfast.worker.consuming.slots import Slot
from holdfast.worker.consuming.verdict_sender import TROUBLE, Outbox, Pending
from holdfast.worker.consuming.waiting import HEALTHY_MS, Reach, first_of, log, restart_delay_ms
from holdfast.worker.execution.executor import Execution
from holdfast.worker.execution.stuck import HandlerStats
from holdfast.worker.handlers import Handler
from holdfast.worker.outcome import bounded
from holdfast.worker.work import Why, Work, WorkMessage


class Consumer:
    def __init__(self, handler: Handler, crew: ConsumerContext) -> None:
        self.handler = handler
        self._crew = crew
        self._runtime = crew.runtime
        self._clock = crew.runtime.clock
        self._outbox = Outbox(handler.options.ref, crew.link, crew.runtime, crew.dice, crew.reach)
        self._execution = Execution(handler, crew, self._outbox)
        # Slots in use, and of these the messages that are still in hand.
        self._taken = 0
        self._works: set[Work] = set()
        self._unsettled = 0
        self._changed = asyncio.Event()
        self._claim: asyncio.Task[list[WorkMessage]] | None = None
        self._failed_claims = 0
        self._cannot_begin: str | None = None
        # Since when it has been able to claim: a process that is slow to fail must not pass for a healthy minute.
        self._ready_at: int | None = None

    @property
    def free(self) -> int:
        return self.handler.options.concurrency - self._taken

    @property
    def in_hand(self) -> int:
        return len(self._works)

    def stats(self) -> HandlerStats:
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
        """Nothing in hand, and every verdict answered."""
        return not self._unsettled

    # --- The loop ----------------------------------------------------------------------------------------------

    async def keep_running(self) -> None:
        """`run`, again after a crash: three times at once, then later and later; until the worker stops."""
        crashes = 0
        while not self._crew.stop.is_asked:
            try:
                await self.run()
            except Exception as error:
                if self._ready_at is not None and self._clock.now_ms() - self._ready_at >= HEALTHY_MS:
                    crashes = 0
                crashes += 1
                delay_ms = restart_delay_ms(crashes)
                log.error(
                    "the consumer of %s crashed and starts again %s",
                    self.handler.options.ref,
                    f"in {delay_ms / 1_000:g} s" if delay_ms else "at once",
                    exc_info=error,
                )
                # Even "at once" lets others run first.
                await self._nap(delay_ms) if delay_ms else await asyncio.sleep(0)

    async def run(self) -> None:
        self._ready_at = None
        try:
            while not self._crew.stop.is_asked:
                if not self.free:
                    await self._until_changed()
                elif self._cannot_begin is not None:
                    text, self._cannot_begin = self._cannot_begin, None
                    raise RuntimeError(text)
                elif await self._is_prepared():
                    await self.claim_once(self._crew.link.wait_ms)
                    # The next claim comes as soon as there is a slot for it.
                    self._outbox.offer_ride()
        finally:
            self._outbox.end_ride()

    async def _is_prepared(self) -> bool:
        """Get ready to run a handler; return False if the worker was told to stop first."""
        if not self._execution.is_ready:
            # It may take long: verdicts must not wait for the claim that comes after it.
            self._outbox.end_ride()
            preparing = asyncio.ensure_future(self._execution.prepare())
            try:
                await first_of(self._runtime, [preparing, self._crew.stop.asked], None)
                if not preparing.done():
                    return False
                preparing.result()
            finally:
                preparing.cancel()
        if self._ready_at is None:
            self._ready_at = self._clock.now_ms()
        return True

    async def claim_once(self, wait_ms: int) -> int:
        """One claim, and its messages begun; answers how many. With verdicts along it does not wait."""
        options = self.handler.options
        ask = ClaimRequest(
            limit=self.free,
            lease_ms=options.lease_ms,
            owner=self._crew.owner,
            with_state=options.with_state,
            # One that its handler wants whole is read before the handler begins: see `Execution`.
            streams=True,
        )
        riders = self._outbox.take()
        if not riders:
            # It may wait long: what comes up meanwhile is not to wait with it.
            self._outbox.end_ride()
        try:
            messages = await self._ask(ask, 0 if riders else wait_ms, riders)
        except TROUBLE as error:
            await self._lost(error, riders)
            return 0
        except BaseException:
            self._outbox.put_back(riders)
            raise
        self._crew.reach.regain()
        self._failed_claims = 0
        for message in messages:
            self._begin(message)
        return len(messages)

    async def _ask(self, ask: ClaimRequest, wait_ms: int, riders: list[Pending]) -> list[WorkMessage]:
        link, ref = self._crew.link, self.handler.options.ref
        if riders:
            results, messages = await link.exchange(ref, [each.verdict for each in riders], ask)
            if not self._outbox.answer_all(riders, results):
                # Verdicts that the store could not write are sent again, with pauses, beside the next claim.
                self._outbox.postpone(riders)
                self._outbox.end_ride()
            return messages
        self._claim = claim = asyncio.ensure_future(link.claim(ref, ask, wait_ms))
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

    async def _lost(self, error: BaseException, riders: list[Pending]) -> None:
        self._crew.reach.lose(error)
        if isinstance(error, Throttled) and not self._failed_claims:
            log.warning("claims of %s have to wait: %s", self.handler.options.ref, error)
        self._outbox.put_back(riders)
        self._outbox.end_ride()
        delay_ms = 1 + backoff_ms(self._failed_claims, Reach.BASE_MS, Reach.CAP_MS, self._crew.dice.roll())
        self._failed_claims += 1
        await self._nap(max(delay_ms, error.retry_after_ms) if isinstance(error, Throttled) else delay_ms)

    async def _until_changed(self) -> None:
        self._changed.clear()
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await first_of(self._runtime, [changed, self._crew.stop.asked], None)
        finally:
            changed.cancel()

    async def _nap(self, ms: int) -> None:
        await first_of(self._runtime, [self._crew.stop.asked], ms)

    # --- Messages in hand --------------------------------------------------------------------------------------

    def _begin(self, message: WorkMessage) -> None:
        work = Work(message, self._clock.now_ms(), self.handler.options.lease_ms)
        self._taken += 1
        self._unsettled += 1
        self._works.add(work)
        self._runtime.spawn(self._work(work, Slot(self._slot_freed)))

    async def _work(self, work: Work, slot: Slot) -> None:
        try:
            await self._execution.execute(work, slot)
        except Exception as error:  # ours, not the handler's: it counts, or the same could happen for ever
            log.exception("a message of %s could not be handled", self.handler.options.ref, extra=work.facts())
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

    def _slot_freed(self, cannot_begin: str | None) -> None:
        self._cannot_begin = cannot_begin or self._cannot_begin
        self._taken -= 1
        self._changed.set()

    # --- Stopping ----------------------------------------------------------------------------------------------

    def stop_claiming(self) -> None:
        if self._claim is not None and self._crew.link.is_cancellable:
            self._claim.cancel()

    def interrupt_all(self) -> None:
        """Their time is up: what is not finished goes back uncounted."""
        for work in self._works:
            work.interrupt(Why.STOPPING, "the worker is stopping")

    async def until_idle(self) -> None:
        while not self.is_idle:
            self._changed.clear()
            await self._changed.wait()

    def give_up(self) -> None:
        self._outbox.give_up()

    def close(self) -> None:
        self._execution.close()
