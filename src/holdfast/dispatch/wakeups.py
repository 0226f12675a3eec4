"""What a store's news leads to."""

from collections.abc import Callable

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.schedules import Scheduler
from holdfast.dispatch.sweeper import Sweeper


class Wakeups:
    """The store's listener: claimable messages wake waiters, deadlines the sweeper, ticks the scheduler."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sweeper: Sweeper,
        scheduler: Scheduler | None = None,
        *,
        reopened: Callable[[], None] | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> None:
        """Without a scheduler, schedules do not fire. `reopened` and `lost` are called besides the dispatcher."""
        self.is_waited_for = dispatcher.is_waited_for
        self.ready = dispatcher.ready
        self.stopped = dispatcher.wake_all
        self.deadline = sweeper.deadline
        self.scheduled = _ignore if scheduler is None else scheduler.scheduled
        self._dispatcher = dispatcher
        self._reopened = reopened
        self.lost = lost or _ignore

    def reopened(self) -> None:
        if self._reopened is not None:
            self._reopened()
        self._dispatcher.reopened()


def _ignore(news: object) -> None:
    pass
