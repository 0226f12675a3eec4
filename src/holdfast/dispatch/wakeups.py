"""What a store's news leads to."""

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.sweeper import Sweeper


class Wakeups:
    """The store's listener: claimable messages wake waiters, deadlines wake the sweeper."""

    def __init__(self, dispatcher: Dispatcher, sweeper: Sweeper) -> None:
        self.is_waited_for = dispatcher.is_waited_for
        self.ready = dispatcher.ready
        self.stopped = dispatcher.wake_all
        self.deadline = sweeper.deadline
