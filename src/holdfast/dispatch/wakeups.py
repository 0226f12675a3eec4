"""The listener of a store: it passes the store's notifications to the parts that act on them."""

from collections.abc import Callable

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.schedules import Scheduler
from holdfast.dispatch.sweeper import Sweeper


class Wakeups:
    """The listener of a store. Ready messages wake waiters, deadlines the sweeper, and ticks the scheduler."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sweeper: Sweeper,
        scheduler: Scheduler | None = None,
        *,
        reopened: Callable[[], None] | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> None:
        """Connect the parts.

        Args:
            scheduler: None if schedules do not fire in this process.
            reopened: Called after the store has reopened, before waiters and watchers are woken.
            lost: Called with the reason if the store cannot be used again in this process.
        """
        self.is_waited_for = dispatcher.is_waited_for
        self.ready = dispatcher.ready
        self.stopped = dispatcher.wake_all
        self.deadline = sweeper.deadline
        self.scheduled = _ignore if scheduler is None else scheduler.scheduled
        self._dispatcher = dispatcher
        self._reopened = reopened
        self.lost = lost or _ignore

    def reopened(self) -> None:
        """Call the function given for it, then wake all waiters and watchers."""
        if self._reopened is not None:
            self._reopened()
        self._dispatcher.reopened()


def _ignore(notification: object) -> None:
    pass
