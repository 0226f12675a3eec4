"""Watch a directory for messages that other processes write into it (SPEC 6.3).

A queue is watched while it has waiters. inotify reports files that are renamed or linked into the queue's msg/ folder;
the waiters then look for messages themselves. While msg/ does not exist, the nearest existing folder above it is
watched instead, up to the root, and the watch moves down as folders are created. The first message of a new queue or
tenant therefore wakes its waiters like any later one.

A queue whose watch fails, for any reason, is polled instead; other queues are not affected. Network file systems do not
report writes of other machines: there, every queue is polled.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.background import Backoff, run_forever, sleep_for
from holdfast.clock import Clock
from holdfast.model.names import QueueRef
from holdfast.stores.objects.documents import layout

_log = logging.getLogger("holdfast")

# How often the watch checks which queues still have waiters.
_CHECK_WAITERS_MS = 1_000
# Attempts to place a watch while other processes create and delete the folders of the queue.
_TRIES = 16

# Called with the queues that may have new messages and True, or with all queues that are watched or polled and False:
# the latter asks which of them no longer have waiters.
Report = Callable[[list[QueueRef], bool], None]

# File systems that other machines write into, by their names in /proc/self/mountinfo: network and cluster file systems,
# and directories that a virtual machine shares with its host.
_REMOTE = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "coda", "orangefs"),
        *("beegfs", "gpfs", "ocfs2", "gfs2", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"),
    }
)


class _Watched(NamedTuple):
    """The inotify watch of a queue. `awaits` is the folder that has to be created there first; None if the watch is on
    msg/."""

    handle: Any
    awaits: str | None


class DirectoryWatch:
    """A watch on a directory that wakes the waiters of its queues, by inotify or by polling."""

    def __init__(self, root: Path, poll_ms: int) -> None:
        """Watch queues below `root`. Queues that cannot be watched are polled every `poll_ms` milliseconds."""
        self._root = root
        self._poll_ms = poll_ms
        self._inotify: Any = None
        self._watches: dict[QueueRef, _Watched] = {}
        # The queues of each watch: queues that do not exist yet share the watch of a folder above them.
        self._refs: dict[Any, set[QueueRef]] = {}
        # Queues whose watch failed.
        self.polled: set[QueueRef] = set()
        self._report: Report = lambda refs, has_news: None

    def watch(self, ref: QueueRef) -> None:
        """Watch a queue that may have waiters. Repeated calls do nothing."""
        if self._inotify is None:
            self.polled.add(ref)  # logged once by _begin
        elif ref not in self._watches and ref not in self.polled:
            self._watch_or_poll(ref)

    def unwatch(self, ref: QueueRef) -> None:
        """Stop watching a queue without waiters."""
        self.polled.discard(ref)
        self._remove(ref)

    # --- Watches -----------------------------------------------------------------------------------------------

    def _watch_or_poll(self, ref: QueueRef) -> bool:
        """Watch a queue's msg/ folder or the nearest folder above it; poll the queue if that fails. Return whether msg/
        is watched."""
        try:
            watched = self._add(ref)
        except (OSError, ValueError) as error:
            self._remove(ref)
            if ref not in self.polled:
                _log.warning("queue_not_watched queue=%s error=%s: it is polled", ref, error, extra=ref._asdict())
                self.polled.add(ref)
            return False
        before = self._watches.get(ref)
        if before is None or before.handle is not watched.handle:
            self._remove(ref)
        self._watches[ref] = watched
        self._refs.setdefault(watched.handle, set()).add(ref)
        self.polled.discard(ref)
        return watched.awaits is None

    def _remove(self, ref: QueueRef) -> None:
        watched = self._watches.pop(ref, None)
        if watched is not None and (refs := self._refs.get(watched.handle)) is not None:
            refs.discard(ref)
            self._remove_unused(watched.handle)

    def _remove_unused(self, handle: Any) -> None:
        if self._refs.get(handle) or self._inotify is None:
            return
        self._refs.pop(handle, None)
        try:
            self._inotify.rm_watch(handle)
        except (OSError, ValueError) as error:
            _log.debug("watch_already_ended path=%s error=%s", handle.path, error)

    def _add(self, ref: QueueRef) -> _Watched:
        names = layout.messages(ref).strip("/").split("/")
        for _ in range(_TRIES):
            handle, depth = self._add_nearest(names)
            # Check only after placing the watch: a folder created before is seen here, a later one is reported by
            # inotify.
            if depth == len(names) or not self._root.joinpath(*names[: depth + 1]).exists():
                return _Watched(handle, None if depth == len(names) else names[depth])
            self._remove_unused(handle)
        raise OSError(f"the directories of {ref} are created and deleted again and again")

    def _add_nearest(self, names: list[str]) -> tuple[Any, int]:
        """Watch the deepest existing folder; return the watch and the folder's depth below the root."""
        from asyncinotify import Mask

        mask = Mask.MOVED_TO | Mask.CREATE | Mask.DELETE_SELF | Mask.MOVE_SELF
        for depth in range(len(names), -1, -1):
            try:
                return self._inotify.add_watch(self._root.joinpath(*names[:depth]), mask), depth
            except FileNotFoundError:
                continue
        raise FileNotFoundError(f"{self._root} does not exist")

    # --- Loops -------------------------------------------------------------------------------------------------

    async def run(self, report: Report, clock: Clock) -> None:
        """Report changes in the watched queues to `report` until cancelled. The loops wait on the clock."""
        self._report = report
        self._begin()
        loops = [
            run_forever(self.poll_once, Backoff("watch_polling"), clock, lambda: sleep_for(clock, self._poll_ms)),
            run_forever(
                self.check_waiters_once, Backoff("watch_waiters"), clock, lambda: sleep_for(clock, _CHECK_WAITERS_MS)
            ),
        ]
        if self._inotify is not None:
            loops.append(self._listen(clock))
        try:
            await asyncio.gather(*loops)
        finally:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None

    def _begin(self) -> None:
        kind = file_system_type(self._root)
        if kind is not None and is_remote(kind):
            _log.warning(
                "queues_polled path=%s file_system=%s: it may not report writes of other machines", self._root, kind
            )
            return
        try:
            from asyncinotify import Inotify

            self._inotify = Inotify()
        except (ImportError, OSError, AttributeError) as error:
            _log.warning("queues_polled path=%s error=%s: inotify is not available", self._root, error)

    async def _listen(self, clock: Clock) -> None:
        backoff = Backoff("watch")
        while True:
            try:
                await self.listen_once()
            except Exception as error:
                # The lost events are unknown, so every queue is polled until it can be watched again.
                for ref in list(self._watches):
                    self._remove(ref)
                    self.polled.add(ref)
                await sleep_for(clock, backoff.failed(error))
            else:
                backoff.succeeded()

    async def listen_once(self) -> None:
        """Wait for one inotify event, and report the queues whose waiters have to look."""
        from asyncinotify import Mask

        event = await self._inotify.get()
        if event.mask & Mask.Q_OVERFLOW:
            # The kernel dropped an unknown number of events: watch every queue anew, and let all waiters look.
            refs = list(self._watches)
            for ref in refs:
                self._watch_or_poll(ref)
        elif event.mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED | Mask.UNMOUNT):
            refs = self._watch_again(event.watch)
        else:
            name = str(event.name)
            refs = [ref for ref in list(self._refs.get(event.watch, ())) if self._may_concern(ref, name)]
        if refs:
            self._report(refs, True)

    def _watch_again(self, handle: Any) -> list[QueueRef]:
        """Watch the queues of a deleted folder further up, and return them."""
        refs = list(self._refs.get(handle, ()))
        for ref in refs:
            self._remove(ref)
            self._watch_or_poll(ref)
        return refs

    def _may_concern(self, ref: QueueRef, name: str) -> bool:
        """Return whether an entry of this name in the watched folder may be a message of the queue."""
        awaits = self._watches[ref].awaits
        if awaits is None:
            return name.endswith(layout.METADATA)
        # Messages may have been written before msg/ was watched, so the waiters look once it is.
        return name == awaits and self._watch_or_poll(ref)

    async def poll_once(self) -> None:
        """Report the queues that are not watched, and watch those that can be watched again."""
        polled = list(self.polled)
        if self._inotify is not None:
            for ref in polled:
                self._watch_or_poll(ref)
        if polled:
            self._report(polled, True)

    async def check_waiters_once(self) -> None:
        """Report all queues with False, so that those without waiters are released."""
        if waited := [*self._watches, *self.polled]:
            self._report(waited, False)


def is_remote(kind: str) -> bool:
    """Return whether a file system of this type may be written by other machines, which inotify does not report.

    A file system in user space (`fuse.sshfs`, `fuse.s3fs`, …) is taken for one, because most of them are. Polling one
    that is local only costs time.
    """
    return kind in _REMOTE or kind == "fuse" or kind.startswith("fuse.")


def file_system_type(path: Path) -> str | None:
    """Return the file system type of a path, as Linux names it; None if it is unknown."""
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
