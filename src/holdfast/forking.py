"""Forked children: an open store or connection belongs to the process that opened it.

A child inherits memory and descriptors, but no other thread, and every descriptor is shared with the parent: a child
that used them would write into the parent's files and sockets, or wait for threads that do not exist. So each object
that holds such things listens for forks and gives them up in the child.
"""

import os
from typing import Protocol
from weakref import WeakSet

from holdfast.model.errors import StoreUnavailable


class ForkListener(Protocol):
    def forked(self) -> None:
        """Give up what belongs to the parent.

        Called in the child, in the thread that forked, before anything else runs. It must not wait or take a lock:
        the thread that holds the lock may exist only in the parent.
        """


# A child has to find the live objects, and `os.register_at_fork` takes no hook back: one hook, and weak references.
_listeners: WeakSet[ForkListener] = WeakSet()


def listen_for_forks(listener: ForkListener) -> None:
    """Call `listener.forked()` in every child that this process forks, for as long as the listener lives."""
    _listeners.add(listener)


def _tell_listeners() -> None:
    for listener in list(_listeners):
        listener.forked()


def forked_error(what: str = "this store") -> StoreUnavailable:
    """Return the error for a call in a child on something that was opened before the fork."""
    return StoreUnavailable(
        f"{what} was opened before the process forked, and belongs to the parent, process {os.getppid()}: "
        "open it after the fork, in the process that uses it",
        is_forked=True,
    )


os.register_at_fork(after_in_child=_tell_listeners)
