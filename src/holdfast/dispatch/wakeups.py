"""What a store's news leads to."""

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.schedules import Scheduler
from holdfast.dispatch.sweeper import Sweeper


class Wakeups:
    """The store's listener: claimable messages wake waiters, deadlines the sweeper, ticks the scheduler."""

    def __init__(self, dispatcher: Dispatcher, sweeper: Sweeper, scheduler: Scheduler | None = None) -> None:
        """Without a scheduler nobody fires what is scheduled."""
        self.is_waited_for = dispatcher.is_waited_for
        self.ready = dispatcher.ready
        self.stopped = dispatcher.wake_all
        self.deadline = sweeper.deadline
        self.scheduled = _ignore if scheduler is None else scheduler.scheduled


def _ignore(at_ms: int) -> None:
    pass
