"""Fire schedules: enqueue one message for each tick, on whichever server of the store comes first."""

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

# The maximum number of schedules that are fired together. One sync of the disk serves them all, but their payloads are
# in memory meanwhile.
FIRE_LIMIT = 64
# The time between two looks at a store that does not notify of schedules set by other servers. The first tick of such a
# schedule is late by at most this time.
_POLL_MS = 5_000

# Applies the tenant's limits to an enqueue; the context manager is open while the enqueue runs.
Admit = Callable[[QueueRef, list[Draft]], Awaitable[AbstractContextManager[Any]]]

# A tick that the store could not enqueue: the error, and the name of the schedule.
_Failure = tuple[Exception, str]


class Scheduler:
    """A background part that fires the schedules of a store. It sleeps until the next tick."""

    def __init__(self, store: Store, runtime: Runtime, admit: Admit) -> None:
        self._store = store
        self._runtime = runtime
        self._admit = admit
        self._timer: Timer | None = None
        # The earliest known tick. Its timer is set at once, or at the end of a running pass.
        self._next_at: int | None = None
        self._is_started = False
        self._is_firing = False
        self._backoff = Backoff("schedules")
        self._is_closed = False

    def start(self) -> None:
        """Begin to fire. Call it after all other parts of the server have started, because a tick enqueues."""
        self._is_started = True
        if not self._store.capabilities.pushes_wakeups:
            self.scheduled(self._runtime.clock.now_ms())
        self._set_timer()

    def scheduled(self, at_ms: int) -> None:
        """Take note of a tick at `at_ms`. The store calls it."""
        if self._next_at is None or at_ms < self._next_at:
            self._next_at = at_ms
            self._set_timer()

    def close(self) -> None:
        """Stop firing."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def fire_once(self) -> int:
        """Fire the ticks that are due, at most `FIRE_LIMIT`, and return their number.

        Ticks that failed because of the store are retried after a pause.
        """
        now_ms = self._runtime.clock.now_ms()
        due, next_at = await self._store.schedules.due(FIRE_LIMIT, now_ms)
        failures: list[_Failure] = []
        await self._run_together([self._fire(ref, schedule, now_ms, failures) for ref, schedule in due])
        if failures:
            self._put_off(*failures[0])
            # The failed ticks are still due; they must not end the pause.
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
            except HoldfastError as error:  # the time zone is no longer known on this machine
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
        """Skip a tick whose message was refused. It is not retried, because the next tick may come before a retry."""
        skipped = after_skipped(schedule, next_at, f"{error.code}: {error.message}")
        if await self._store.schedules.put(ref, schedule, skipped, self._runtime.clock.now_ms()):
            _log.warning(
                "tick_skipped schedule=%s queue=%s error=%s",
                schedule.name,
                ref,
                error.message,
                extra={**ref._asdict(), "schedule": schedule.name, "code": error.code},
            )

    def _put_off(self, error: Exception, schedule: str) -> None:
        if not self._is_closed:
            pause_ms = self._backoff.failed(error, schedule=schedule)
            self.scheduled(self._runtime.clock.now_ms() + pause_ms)

    async def _run_together(self, works: list[Coroutine[Any, Any, None]]) -> None:
        """Run coroutines concurrently, and wait for all of them."""
        if not works:
            return
        remaining, done = len(works), self._runtime.ticket()

        async def run(work: Coroutine[Any, Any, None]) -> None:
            nonlocal remaining
            try:
                await work
            finally:
                remaining -= 1
                if not remaining and not done.done():
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
                    self.scheduled(self._runtime.clock.now_ms() + _POLL_MS)
        except Exception as error:
            self._put_off(error, "all")
        finally:
            self._is_firing = False
            self._set_timer()
