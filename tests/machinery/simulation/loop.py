"""One seeded loop with virtual time: steps that are ready run in an order that the dice choose.

Nothing here is asyncio's, nothing waits and nothing reads a clock, so a run is a function of its seed. A step is one
stretch of a coroutine from wait to wait. Steps that are ready at the same moment are taken in any order, which is more
than an event loop does: what holds here rests on no order but the one that tickets make.
"""

import heapq
import random
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

# More steps than any run takes: whoever reaches it spins.
_MOST_STEPS = 100_000
# Now and then time passes though steps are ready: how often is the run's to say, and how long at most.
_DRAG_MS = 3
_LAG_MS = 8
# How often the end of a turn comes before everything that was ready has had its step.
_EARLY_TURN_END = 1 / 8

_PENDING, _VALUE, _ERROR, _CANCELLED = range(4)


class Stalled(Exception):
    """No task can continue, or one never ends."""


class Owner(Protocol):
    """The owner of steps. The steps of a dead owner never run."""

    is_dead: bool


class Forever:
    """The owner of what no crash ends."""

    is_dead = False


class SimulatedTicket(Generic[T]):
    """A result to come, awaited by one task."""

    __slots__ = ("_result", "_state", "_task")

    def __init__(self) -> None:
        self._state = _PENDING
        self._result: Any = None
        self._task: Task | None = None

    def done(self) -> bool:
        return self._state != _PENDING

    def cancelled(self) -> bool:
        return self._state == _CANCELLED

    def result(self) -> T:
        if self._state == _VALUE:
            value: T = self._result
            return value
        if self._state == _ERROR:
            raise self._result
        if self._state == _CANCELLED:
            raise CancelledError
        raise RuntimeError("this ticket is not settled yet")

    def exception(self) -> BaseException | None:
        if self._state == _CANCELLED:
            raise CancelledError
        error: BaseException | None = self._result if self._state == _ERROR else None
        return error

    def set_result(self, value: T, /) -> None:
        self._settle(_VALUE, value)

    def set_exception(self, error: BaseException, /) -> None:
        self._settle(_ERROR, error)

    def cancel(self) -> None:
        self._settle(_CANCELLED, None)

    def fail_instead(self, error: BaseException) -> None:
        """Replace a result that its task has not received yet by an error."""
        if self._state == _VALUE:
            self._state, self._result = _ERROR, error

    def _settle(self, state: int, result: Any) -> None:
        if self._state != _PENDING:
            raise RuntimeError("a ticket is settled once")
        self._state = state
        self._result = result
        if self._task is not None:
            self._task.wake()

    def __await__(self) -> Generator[Any, None, T]:
        if self._state == _PENDING:
            yield self
        return self.result()


class Task:
    """A coroutine on its way, cancelled as asyncio cancels: where it waits, or else at its next wait."""

    __slots__ = ("_loop", "_must_cancel", "_on_done", "_owner", "_waits_for", "_work", "error", "is_done", "value")

    def __init__(
        self, loop: "SeededLoop", work: Work[Any], owner: Owner, on_done: "Callable[[Task], None] | None" = None
    ) -> None:
        self._loop = loop
        self._work = work
        self._owner = owner
        self._on_done = on_done
        self._waits_for: SimulatedTicket[Any] | None = None
        self._must_cancel = False
        self.is_done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.wake()

    def wake(self) -> None:
        self._loop.call_ready(self._step)

    def cancel(self) -> None:
        if self.is_done:
            return
        waits_for = self._waits_for
        if waits_for is not None and not waits_for.done():
            waits_for.cancel()
        else:
            self._must_cancel = True  # its step is due already

    def vanish(self) -> None:
        """Kill the owner's process. Its `finally` blocks run, but as a dead owner, without any effect."""
        if not self.is_done:
            self.is_done = True
            try:
                self._work.close()
            except Exception:  # what a crash interrupts cannot complain
                return

    def _step(self) -> None:
        if self.is_done or self._owner.is_dead:
            return
        waited_for, self._waits_for = self._waits_for, None
        try:
            if self._must_cancel or (waited_for is not None and waited_for.cancelled()):
                self._must_cancel = False
                waits_for = self._work.throw(CancelledError())
            else:
                waits_for = self._work.send(None)
        except StopIteration as finished:
            self._finish(finished.value, None)
        except (Exception, CancelledError) as error:
            self._finish(None, error)
        else:
            if type(waits_for) is not SimulatedTicket:
                self._work.close()
                self._finish(None, RuntimeError(f"the core waits for tickets alone, not for {waits_for!r}"))
                return
            self._waits_for = waits_for
            waits_for._task = self
            if waits_for.done():
                self.wake()
            elif self._must_cancel:
                self._must_cancel = False
                waits_for.cancel()

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self.is_done = True
        self.value, self.error = value, error
        if self._on_done is not None:
            self._on_done(self)


class SimulatedTimer:
    __slots__ = ("callback", "owner")

    def __init__(self, callback: Callable[[], None], owner: Owner) -> None:
        self.callback: Callable[[], None] | None = callback
        self.owner = owner

    def cancel(self) -> None:
        self.callback = None

    def ring(self) -> None:
        if self.callback is not None and not self.owner.is_dead:
            callback, self.callback = self.callback, None
            callback()


class SeededLoop:
    """`now_ms` is the time that passes for everybody; what a process reads off its clock may differ by an offset."""

    def __init__(self, seed: object, now_ms: int, *, drag: float = 0.0, lag: float = 0.0) -> None:
        """No machine is infinitely fast. `drag`: how likely time passes after a step, though others are ready; `lag`:
        how likely a task that can go on does so a little later."""
        self.now_ms = now_ms
        self._drag = drag
        self._lag = lag
        self.ready: list[Callable[[], None]] = []
        self.steps = 0
        self._random = random.Random(f"{seed} loop").random
        self._timers: list[tuple[int, int, SimulatedTimer]] = []
        self._timer_count = 0
        self._turn_ends: list[Callable[[], None]] = []
        self._forever = Forever()

    def ticket(self) -> SimulatedTicket[Any]:
        return SimulatedTicket()

    def spawn(self, work: Work[Any], owner: Owner | None = None, on_done: Callable[[Task], None] | None = None) -> Task:
        return Task(self, work, owner or self._forever, on_done)

    def call_at(self, at_ms: int, callback: Callable[[], None], owner: Owner | None = None) -> SimulatedTimer:
        timer = SimulatedTimer(callback, owner or self._forever)
        if at_ms <= self.now_ms:
            self.ready.append(timer.ring)
        else:
            self._timer_count += 1
            heapq.heappush(self._timers, (at_ms, self._timer_count, timer))
        return timer

    def call_ready(self, step: Callable[[], None]) -> None:
        """The next step of a task."""
        if self._lag and self._random() < self._lag:
            self.call_at(self.now_ms + 1 + int(self._random() * _LAG_MS), step)
        else:
            self.ready.append(step)

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        self._turn_ends.append(callback)

    async def sleep(self, ms: int) -> None:
        ticket = self.ticket()

        def wake() -> None:
            if not ticket.done():
                ticket.set_result(None)

        timer = self.call_at(self.now_ms + ms, wake)
        try:
            await ticket
        finally:
            timer.cancel()

    def skip(self, ms: int) -> None:
        """Let time pass without any step, so that everything is late."""
        self._pass_to(self.now_ms + ms)

    def run(self, main: Work[T]) -> T:
        """Until `main` has ended. Whatever else is on its way then stays where it is."""
        task = self.spawn(main)
        ready, roll = self.ready, self._random
        while not task.is_done:
            if ready:
                self._take_step(ready, roll)
            elif self._turn_ends:
                self._end_turn()
            elif self._timers:
                self._pass_to(self._timers[0][0])
            else:
                raise Stalled("everybody waits for somebody else")
        if task.error is not None:
            raise task.error
        value: T = task.value
        return value

    def _take_step(self, ready: list[Callable[[], None]], roll: Callable[[], float]) -> None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise Stalled(f"{_MOST_STEPS} steps were not enough")
        last = ready.pop()
        at = int(roll() * (len(ready) + 1))
        if at < len(ready):
            last, ready[at] = ready[at], last
        last()
        rolled = roll()
        if rolled < self._drag:
            self._pass_to(self.now_ms + 1 + int(rolled / self._drag * _DRAG_MS))
        elif self._turn_ends and rolled > 1 - _EARLY_TURN_END:
            self._end_turn()

    def _end_turn(self) -> None:
        ends, self._turn_ends = self._turn_ends, []
        for end in ends:
            end()

    def _pass_to(self, at_ms: int) -> None:
        self.now_ms = max(self.now_ms, at_ms)
        while self._timers and self._timers[0][0] <= self.now_ms:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                self.ready.append(timer.ring)
