"""The interface of a runtime, which the core is given instead of an event loop.

The core (stores, dispatcher, service) is one set of coroutines. They wait only for `Ticket`s that their `Runtime` made,
so the runtime decides how to wait:

    LoopRuntime    a ticket is an asyncio future; background work is a task.
    ThreadRuntime  the calling thread steps the coroutine under one lock, and sleeps only if its ticket is not settled
                   yet. A call that need not wait costs no switch to another thread.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from holdfast.clock import Clock, Timer

T = TypeVar("T")
Work = Coroutine[Any, Any, T]


class Ticket(Protocol[T]):
    """A future of the core: a later result, awaited by one coroutine and settled once."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool:
        """Return whether the ticket was cancelled."""

    def result(self) -> T:
        """Return the result, or raise the error. Raise `asyncio.InvalidStateError` before the ticket is settled."""

    def exception(self) -> BaseException | None: ...
    def set_result(self, value: T, /) -> None:
        """Settle the ticket with a result."""

    def set_exception(self, error: BaseException, /) -> None:
        """Settle the ticket with an error."""

    def __await__(self) -> Generator[Any, None, T]: ...


class Runtime(Protocol):
    """Runs coroutines of the core, their timers and their blocking functions.

    A step is the part of a coroutine between two waits. Steps never run at the same time.
    """

    clock: Clock
    # The steps of several callers run in turns, as those of one pass of an event loop. Work that a step defers to the
    # end of its turn can be shared with the other steps of the turn.
    has_turns: bool
    # A function at the end of a turn may block for a moment. Only with turns.
    may_block_at_turn_end: bool
    # Each caller steps its own coroutine on its own thread.
    callers_have_threads: bool
    # The current step belongs to a caller with its own thread, and not to background work.
    may_run_unlocked: bool

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Run `callback` once every step that can continue now has continued. Only with turns."""

    def ticket(self) -> Ticket[Any]:
        """Return a new ticket."""

    def spawn(self, work: Work[None]) -> None:
        """Run a coroutine in the background.

        It belongs to the runtime: the cancellation of a caller does not reach it, and `close` waits for it.
        """

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` at this time. If the time has passed, run it soon, but not before this call returns."""

    def offload(self, function: Callable[[], T], *, thread: int = 0) -> Ticket[T]:
        """Run a blocking function on another thread.

        Each number stands for one thread, on which functions run one after the other in the order of the calls.
        """

    def run_unlocked(self, function: Callable[[], T]) -> T:
        """Run a blocking function on the calling thread in the middle of a step, while other steps continue.

        Only where `may_run_unlocked` is true.
        """

    def offload_long(self, function: Callable[[], T], *, thread: int = 0) -> Ticket[T]:
        """Run a function that may block for a long time, on a second set of threads beside those of `offload`."""

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        """Run `callback` soon as a step of its own. Safe to call from any thread."""
