"""Fires schedules: at each tick one message, whichever of the servers on a store gets to it."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from holdfast.background import Backoff
from holdfast.clock import Timer
from holdfast.model.errors import HoldfastError, Refused, Throttled
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.schedules import Schedule, after_skipped, draft_at, due_tick
from holdfast.runtime import Runtime
from holdfast.stores.contract import Store

_log = logging.getLogger("holdfast")

# Schedules fired together, so that one sync of the disk serves them; their payloads are in memory meanwhile.
FIRE_LIMIT = 64
# Where nobody says that another server has put a schedule: a tick comes this much late, at worst, after it was put.
_LOOK_MS = 5_000

# Holds the tenant to its limits, for as long as the enqueue is under way.
Admit = Callable[[QueueRef, list[Draft]], Awaitable[AbstractContextManager[Any]]]

# A tick that the store could not take: the error, and the schedule's name.
_Failure = tuple[Exception, str]


class Scheduler:
    """Sleeps until the store's next tick; the store says when there is an earlier one."""

    def __init__(self, store: Store, runtime: Runtime, admit: Admit) -> None:
        self._store = store
        self._runtime = runtime
        self._admit = admit
        self._timer: Timer | None = None
        # The earliest tick heard of; a timer is set for it unless a pass is under way, which sets it at its end.
        self._next_at: int | None = None
        self._is_started = False
        self._is_firing = False
        self._backoff = Backoff("schedules")
        self._is_closed = False

    def start(self) -> None:
        """Not before everything is there that a firing goes through."""
        self._is_started = True
        if not self._store.capabilities.pushes_wakeups:
            self.scheduled(self._runtime.clock.now_ms())
        self._set_timer()

    def scheduled(self, at_ms: int) -> None:
        if self._next_at is None or at_ms < self._next_at:
            self._next_at = at_ms
            self._set_timer()

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def fire_once(self) -> int:
        """Fire what is due, in one bounded pass; return how many ticks were due. Ticks that the store could not take
        are tried again after a pause."""
        now_ms = self._runtime.clock.now_ms()
        due, next_at = await self._store.schedules.due(FIRE_LIMIT, now_ms)
        failures: list[_Failure] = []
        await self._together([self._fire(ref, schedule, now_ms, failures) for ref, schedule in due])
        if failures:
            self._put_off(*failures[0])
            # They are due still: what is due is no reason to end the pause.
            next_at = None if next_at is not None and next_at <= now_ms else next_at
        else:
            self._backoff.succeeded()
        if next_at is not None:
            self.scheduled(next_at)
        return len(due)

    # --- One tick ----------------------------------------------------------------------------------------------

    async def _fire(self, ref: QueueRef, schedule: Schedule, now_ms: int, failures: list[_Failure]) -> None:
        try:
            try:
                tick = due_tick(schedule, now_ms)
            except HoldfastError as error:  # its time zone is known no more
                await self._skip(ref, schedule, None, error)
                return
            if tick is None:
                return
            try:
                with await self._admit(ref, [draft_at(schedule, tick.at)]):
                    await self._store.schedules.fire(ref, schedule, tick, now_ms)
            except (Refused, Throttled) as error:
                await self._skip(ref, schedule, tick.next_at, error)
        except Refused:
            pass  # the queue is being deleted, and its schedules are gone
        except Exception as error:
            failures.append((error, f"{ref}/{schedule.name}"))

    async def _skip(self, ref: QueueRef, schedule: Schedule, next_at: int | None, error: HoldfastError) -> None:
        """What a tenant may not enqueue now is not enqueued late: its next tick may come sooner than room does."""
        told = after_skipped(schedule, next_at, f"{error.code}: {error.message}")
        if await self._store.schedules.put(ref, schedule, told, self._runtime.clock.now_ms()):
            _log.warning("a tick of schedule %s of %s enqueued nothing: %s", schedule.name, ref, error.message)

    def _put_off(self, error: Exception, schedule: str) -> None:
        if not self._is_closed:
            pause_ms = self._backoff.failed(error, schedule=schedule)
            self.scheduled(self._runtime.clock.now_ms() + pause_ms)

    async def _together(self, works: list[Coroutine[Any, Any, None]]) -> None:
        if not works:
            return
        left, done = len(works), self._runtime.ticket()

        async def run(work: Coroutine[Any, Any, None]) -> None:
            nonlocal left
            try:
                await work
            finally:
                left -= 1
                if not left and not done.done():
                    done.set_result(None)

        for work in works:
            self._runtime.spawn(run(work))
        await done

    # --- Waking ------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._next_at is None or self._is_firing or self._is_closed or not self._is_started:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_at(self._next_at, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if not self._is_closed and not self._is_firing:
            self._is_firing = True
            self._next_at = None
            self._runtime.spawn(self._pass())

    async def _pass(self) -> None:
        try:
            if not self._is_closed:
                await self.fire_once()
                if not self._store.capabilities.pushes_wakeups:
                    self.scheduled(self._runtime.clock.now_ms() + _LOOK_MS)
        except Exception as error:
            self._put_off(error, "all")
        finally:
            self._is_firing = False
            self._set_timer()
