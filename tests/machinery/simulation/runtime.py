"""The runtime that a simulated core is given: a share of the seeded loop that can be killed as a whole."""

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.clock import Clock, Timer
from holdfast.dice import Dice
from holdfast.model.errors import HoldfastError
from holdfast.runtime import Ticket, Work
from tests.machinery.simulation.loop import SeededLoop, SimulatedTicket, Task

T = TypeVar("T")

_SLOWEST_OFFLOAD_MS = 5


@contextmanager
def _unheard() -> Iterator[None]:
    """Work that ends before it began may hold other work, which was then never awaited: here that is no mistake."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


class OffsetClock:
    """The loop's time as one process reads it: off by as much as its machine's clock is."""

    def __init__(self, loop: SeededLoop, offset_ms: int) -> None:
        self._loop = loop
        self.offset_ms = offset_ms

    def now_ms(self) -> int:
        return self._loop.now_ms + self.offset_ms


class SimulatedRuntime:
    """A `Runtime`, and the process that it stands for. After a kill, none of its tasks continues."""

    # Whether a sync is short enough for that is measured, and would not be the same in every run of a seed.
    callers_have_threads = may_run_unlocked = may_block_at_turn_end = False

    def __init__(
        self, loop: SeededLoop, clock: OffsetClock, dice: Dice, *, has_turns: bool, on_broken: Callable[[str], None]
    ) -> None:
        self.clock: Clock = clock
        self._offset_ms = clock.offset_ms
        self.has_turns = has_turns
        self.is_dead = False
        self._loop = loop
        self._dice = dice
        self._on_broken = on_broken
        # In the order in which they began: a crash must not end them in the order of their addresses.
        self._tasks: dict[Task, None] = {}
        self._offloaded: deque[tuple[Callable[[], Any], SimulatedTicket[Any]]] = deque()

    def ticket(self) -> SimulatedTicket[Any]:
        return SimulatedTicket()

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        if not self.has_turns:
            raise RuntimeError("this runtime has no turns to share")
        self._loop.at_turn_end(lambda: None if self.is_dead else callback())

    def spawn(self, work: Work[None]) -> None:
        self.begin(work, self._finished)

    def begin(self, work: Work[Any], on_done: Callable[[Task], None]) -> Task | None:
        """A task of this process that can be cancelled: a caller's. None: the process is dead."""
        if self.is_dead:
            with _unheard():
                work.close()
            return None

        def forget(task: Task) -> None:
            self._tasks.pop(task, None)
            on_done(task)

        task = self._loop.spawn(work, self, forget)
        self._tasks[task] = None
        return task

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        return self._loop.call_at(at_ms - self._offset_ms, callback, self)

    def offload(self, function: Callable[[], T], *, thread: int = 0) -> Ticket[T]:
        ticket: SimulatedTicket[T] = SimulatedTicket()
        self._offloaded.append((function, ticket))
        if len(self._offloaded) == 1:
            self._run_offloaded_soon()
        return ticket

    def run_unlocked(self, function: Callable[[], T]) -> T:
        raise RuntimeError("a simulated step has no thread of its own")

    def offload_long(self, function: Callable[[], T], *, thread: int = 0) -> Ticket[T]:
        return self.offload(function)

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        self._loop.call_at(self._loop.now_ms, callback, self)

    def kill(self) -> None:
        """Everything ends where it stands."""
        self.is_dead = True
        tasks, self._tasks = self._tasks, {}
        with _unheard():
            for task in tasks:
                task.vanish()

    def _run_offloaded_soon(self) -> None:
        delay_ms = int(self._dice.roll() * _SLOWEST_OFFLOAD_MS)
        self._loop.call_at(self._loop.now_ms + delay_ms, self._run_offloaded, self)

    def _run_offloaded(self) -> None:
        function, ticket = self._offloaded.popleft()
        try:
            value = function()
        except Exception as error:
            if not ticket.done():
                ticket.set_exception(error)
        else:
            if not ticket.done():
                ticket.set_result(value)
        if self._offloaded:
            self._run_offloaded_soon()

    def _finished(self, task: Task) -> None:
        # A store that refuses is one of the faults; anything else is a fault of ours.
        if task.error is not None and not isinstance(task.error, HoldfastError):
            self._on_broken(f"background work failed: {task.error!r}")
