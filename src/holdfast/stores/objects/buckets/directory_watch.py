"""Watch a directory for messages that other processes put there (SPEC 6.3).

A queue is watched from its first waiter to its last. inotify reports when a file is renamed or linked into the queue's
msg/; the waiters then look for themselves. As long as msg/ does not exist, the nearest existing directory above it is
watched instead, up to the root, and the watch moves down as directories are made: the first message of a new queue, or
of a new tenant, wakes its waiters like any later one.

A queue whose watch fails, for any reason, is polled instead, and only that queue. Network file systems do not report
what other machines write: there every queue is polled.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.background import Backoff, run_forever
from holdfast.clock import Clock
from holdfast.model.names import QueueRef
from holdfast.stores.objects.documents import layout

_log = logging.getLogger("holdfast")

# How often it is asked whether anybody still waits.
_ASK_S = 1.0
# How often the directories of one queue may appear and vanish while its watch is placed.
_TRIES = 16

# Told which queues were written into, or (False) which ones to ask whether anybody waits for them.
Heard = Callable[[list[QueueRef], bool], None]

# File systems of other machines, by what /proc/self/mountinfo calls them.
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs"})


class _Watched(NamedTuple):
    """Where a queue is watched. `awaits` is the directory whose creation it waits for there; None: this is its msg/."""

    handle: Any
    awaits: str | None


class DirectoryWatch:
    def __init__(self, root: Path, poll_ms: int) -> None:
        self._root = root
        self._poll_s = poll_ms / 1_000
        self._inotify: Any = None
        self._watches: dict[QueueRef, _Watched] = {}
        # Queues that are not there yet share the watch of a directory above them.
        self._refs: dict[Any, set[QueueRef]] = {}
        # Those whose watch failed: they are polled.
        self.polled: set[QueueRef] = set()
        self._heard: Heard = lambda refs, now_too: None

    def join(self, ref: QueueRef) -> None:
        """Watch a queue that somebody may wait for."""
        if self._inotify is None:
            self.polled.add(ref)  # that was logged when it was found out
        elif ref not in self._watches and ref not in self.polled:
            self._place(ref)

    def leave(self, ref: QueueRef) -> None:
        self.polled.discard(ref)
        self._let_go(ref)

    # --- Where a queue is watched ------------------------------------------------------------------------------

    def _place(self, ref: QueueRef) -> bool:
        """Watch a queue as far down as it exists; return whether that is its msg/. If it fails, poll it."""
        try:
            watched = self._add(ref)
        except (OSError, ValueError) as error:
            self._let_go(ref)
            if ref not in self.polled:
                _log.warning("queue %s is polled: it cannot be watched (%s)", ref, error, extra={"queue": str(ref)})
                self.polled.add(ref)
            return False
        before = self._watches.get(ref)
        if before is None or before.handle is not watched.handle:
            self._let_go(ref)
        self._watches[ref] = watched
        self._refs.setdefault(watched.handle, set()).add(ref)
        self.polled.discard(ref)
        return watched.awaits is None

    def _let_go(self, ref: QueueRef) -> None:
        watched = self._watches.pop(ref, None)
        if watched is not None and (refs := self._refs.get(watched.handle)) is not None:
            refs.discard(ref)
            self._drop_unused(watched.handle)

    def _drop_unused(self, handle: Any) -> None:
        if self._refs.get(handle) or self._inotify is None:
            return
        self._refs.pop(handle, None)
        try:
            self._inotify.rm_watch(handle)
        except (OSError, ValueError) as error:
            _log.debug("the watch of %s had ended: %s", handle.path, error)

    def _add(self, ref: QueueRef) -> _Watched:
        names = layout.messages(ref).strip("/").split("/")
        for _ in range(_TRIES):
            handle, depth = self._add_nearest(names)
            # Looked for after the watch was placed: a directory made before that is seen here, a later one is reported.
            if depth == len(names) or not self._root.joinpath(*names[: depth + 1]).exists():
                return _Watched(handle, None if depth == len(names) else names[depth])
            self._drop_unused(handle)
        raise OSError(f"the directories of {ref} come and go")

    def _add_nearest(self, names: list[str]) -> tuple[Any, int]:
        """The watch of the deepest directory that exists, and how deep it lies below the root."""
        from asyncinotify import Mask

        mask = Mask.MOVED_TO | Mask.CREATE | Mask.DELETE_SELF | Mask.MOVE_SELF
        for depth in range(len(names), -1, -1):
            try:
                return self._inotify.add_watch(self._root.joinpath(*names[:depth]), mask), depth
            except FileNotFoundError:
                continue
        raise FileNotFoundError(f"{self._root} is gone")

    # --- The loops ---------------------------------------------------------------------------------------------

    async def run(self, heard: Heard, clock: Clock) -> None:
        """Until cancelled."""
        self._heard = heard
        self._begin()
        loops = [
            run_forever(self.poll_once, Backoff("watch_polling"), clock, lambda: asyncio.sleep(self._poll_s)),
            run_forever(self.ask_once, Backoff("watch_waiters"), clock, lambda: asyncio.sleep(_ASK_S)),
        ]
        if self._inotify is not None:
            loops.append(self._listen())
        try:
            await asyncio.gather(*loops)
        finally:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None

    def _begin(self) -> None:
        kind = file_system_of(self._root)
        if kind in _REMOTE:
            _log.warning(
                "%s lies on %s, which does not tell what others write: its queues are polled", self._root, kind
            )
            return
        try:
            from asyncinotify import Inotify

            self._inotify = Inotify()
        except (ImportError, OSError, AttributeError) as error:
            _log.warning("queues in %s are polled: there is no inotify here (%s)", self._root, error)

    async def _listen(self) -> None:
        backoff = Backoff("watch")
        while True:
            try:
                await self.listen_once()
            except Exception as error:
                # Which events were lost is not known: every queue is polled until it can be watched again.
                for ref in list(self._watches):
                    self._let_go(ref)
                    self.polled.add(ref)
                await asyncio.sleep(backoff.failed(error) / 1_000)
            else:
                backoff.succeeded()

    async def listen_once(self) -> None:
        """Wait for one event, and tell whose waiters are to look."""
        from asyncinotify import Mask

        event = await self._inotify.get()
        if event.mask & Mask.Q_OVERFLOW:
            # The lost events are unknown, so every watch is placed anew and all waiters look.
            refs = list(self._watches)
            for ref in refs:
                self._place(ref)
        elif event.mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED | Mask.UNMOUNT):
            refs = self._place_again(event.watch)
        else:
            name = str(event.name)
            refs = [ref for ref in list(self._refs.get(event.watch, ())) if self._is_news(ref, name)]
        if refs:
            self._heard(refs, True)

    def _place_again(self, handle: Any) -> list[QueueRef]:
        """A watched directory is gone: watch its queues further up."""
        refs = list(self._refs.get(handle, ()))
        for ref in refs:
            self._let_go(ref)
            self._place(ref)
        return refs

    def _is_news(self, ref: QueueRef, name: str) -> bool:
        """Return whether an entry of this name, in the watched directory, may be a message of the queue."""
        awaits = self._watches[ref].awaits
        if awaits is None:
            return name.endswith(layout.METADATA)
        # Messages may have been put before the watch was there: once it is, the waiters look.
        return name == awaits and self._place(ref)

    async def poll_once(self) -> None:
        """Have the waiters of queues that are not watched look; watch those that can be watched by now."""
        polled = list(self.polled)
        if self._inotify is not None:
            for ref in polled:
                self._place(ref)
        if polled:
            self._heard(polled, True)

    async def ask_once(self) -> None:
        """Ask which queues are waited for still."""
        if waited := [*self._watches, *self.polled]:
            self._heard(waited, False)


def file_system_of(path: Path) -> str | None:
    """What kind of file system a directory lies on, as Linux calls it; None where that is not known."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return None
