"""Forked children: an open store or connection belongs to the process that opened it.

A child inherits memory and descriptors, but no other thread, and every descriptor is shared with the parent: a child
that used them would write into the parent's files and sockets, or wait for threads that do not exist. So each object
that holds such things listens for forks and gives them up in the child.
"""

import asyncio
import logging
import os
from typing import Protocol
from weakref import WeakSet

from holdfast.model.errors import StoreUnavailable

_log = logging.getLogger("holdfast")


class ForkListener(Protocol):
    def forked(self) -> None:
        """Give up what belongs to the parent.

        Called in the child, in the thread that forked, before anything else runs. It must not wait or take a lock:
        the thread that holds the lock may exist only in the parent.
        """


class _Forks:
    """How the children learn of it: one hook for all, because a registered hook cannot be taken back."""

    def __init__(self) -> None:
        self.listeners: WeakSet[ForkListener] = WeakSet()
        self.generation = 0
        os.register_at_fork(after_in_child=self._tell_listeners)

    def _tell_listeners(self) -> None:
        self.generation += 1
        for listener in list(self.listeners):
            try:
                listener.forked()
            except Exception:  # one that fails must not keep the others on the parent's files
                _log.exception("what the parent has open could not be given up")


_forks = _Forks()


def listen_for_forks(listener: ForkListener) -> None:
    """Call `listener.forked()` in every child that this process forks, for as long as the listener lives."""
    _forks.listeners.add(listener)


def generation() -> int:
    """Return a number that differs between a child and its parent, to tell what was begun before a fork."""
    return _forks.generation


def forked_error(what: str) -> StoreUnavailable:
    """Return the error for a call in a child on something that was opened before the fork."""
    return StoreUnavailable(
        f"{what} was opened before the process forked, and belongs to the parent: open it after the fork, in the "
        "process that uses it"
    )


def cut_off(loop: asyncio.AbstractEventLoop) -> None:
    """Disconnect, in a child, an inherited event loop that no thread runs any more.

    Its descriptors come to lead nowhere. They are not closed, because objects that are freed later close them by
    number; and they cannot stay, because the parent's `epoll` and sockets are behind them.
    """
    # Other loops than asyncio's own have no selector to ask. Theirs stay open, unused.
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
