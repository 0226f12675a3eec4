"""Protection of open stores and connections from forked children; they belong to the process that opened them.

A child inherits the memory and the descriptors of its parent, but only the thread that forked. Every descriptor is
shared with the parent. A child that used them would write into the parent's files and sockets, or wait for threads that
do not exist. Each object that holds descriptors or threads therefore listens for forks, and gives them up in the child.
"""

import asyncio
import logging
import os
from typing import Protocol
from weakref import WeakSet

from holdfast.model.errors import StoreUnavailable

_log = logging.getLogger("holdfast")


class ForkListener(Protocol):
    """An object that holds descriptors or threads."""

    def forked(self) -> None:
        """Give up the descriptors and threads, which belong to the parent.

        Called in the child, in the thread that forked, before anything else runs. It must not wait or acquire a lock,
        because the thread that holds the lock may exist only in the parent.
        """


class _Forks:
    """The listeners, called by a single hook because a registered hook cannot be removed."""

    def __init__(self) -> None:
        self.listeners: WeakSet[ForkListener] = WeakSet()
        self.generation = 0
        os.register_at_fork(after_in_child=self._notify_listeners)

    def _notify_listeners(self) -> None:
        self.generation += 1
        for listener in list(self.listeners):
            try:
                listener.forked()
            except Exception:  # an error in one listener must not leave the others with the parent's files
                _log.exception("fork_listener_failed listener=%s", type(listener).__name__)


_forks = _Forks()


def listen_for_forks(listener: ForkListener) -> None:
    """Call `listener.forked()` in every child that this process forks, as long as the listener exists."""
    _forks.listeners.add(listener)


def generation() -> int:
    """Return a number that differs between a child and its parent, to recognise calls that began before a fork."""
    return _forks.generation


def forked_error(what: str) -> StoreUnavailable:
    """Return the error of a call in a child that uses a store or connection opened before the fork."""
    return StoreUnavailable(
        f"{what} was opened before the process forked, and belongs to the parent: open it after the fork, in the "
        "process that uses it"
    )


def disconnect_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Disconnect, in a child, an inherited event loop that no thread runs any more.

    Its descriptors are redirected to /dev/null. They are not closed, because objects that are freed later close them by
    number. They cannot be kept either, because they refer to the `epoll` and the sockets of the parent.
    """
    # Event loops other than those of asyncio have no selector to search. Their descriptors stay open, unused.
    selector = getattr(loop, "_selector", None)
    if selector is None:
        return
    descriptors = [key.fd for key in (selector.get_map() or {}).values()]
    if hasattr(selector, "fileno"):
        descriptors.append(selector.fileno())
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor, inheritable=False)
    if nowhere not in descriptors:
        os.close(nowhere)
