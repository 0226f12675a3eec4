"""Watching a directory for what other processes put there (SPEC 6.3).

A queue is watched from its first waiter to its last. inotify says when a file is renamed or linked into its msg/; that
is all that is taken from it: who waits then looks. A queue whose watch fails, for whatever reason, is polled instead,
and only that queue. Network file systems say nothing of what other machines write: there every queue is polled.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.model.names import QueueRef
from holdfast.stores.objects import layout

_log = logging.getLogger("holdfast")

# How often it is asked whether anybody still waits.
_ASK_S = 1.0

# Told which queues were written into, or (False) which ones to ask whether anybody waits for them.
Heard = Callable[[list[QueueRef], bool], None]

# File systems of other machines, by what /proc/self/mountinfo calls them.
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs"})


class Watch:
    def __init__(self, root: Path, poll_ms: int) -> None:
        self._root = root
        self._poll_s = poll_ms / 1_000
        self._inotify: Any = None
        self._watches: dict[QueueRef, Any] = {}
        # Those whose watch failed: they are polled.
        self.polled: set[QueueRef] = set()
        # Those that are not there yet: polled as well.
        self.absent: set[QueueRef] = set()
        self._is_able = True

    def join(self, ref: QueueRef, *, is_there: bool = True) -> None:
        """Somebody may wait for this queue. One that is not there yet has no directory to watch, and gets none."""
        if not is_there:
            self.absent.add(ref)
            return
        self.absent.discard(ref)
        if ref in self._watches or ref in self.polled:
            return
        if self._inotify is None or not self._is_able:
            self.polled.add(ref)
            return
        try:
            self._watches[ref] = self._add(ref)
        except (OSError, ValueError) as error:
            _log.warning("queue %s is polled: it cannot be watched (%s)", ref, error)
            self.polled.add(ref)

    def leave(self, ref: QueueRef) -> None:
        self.polled.discard(ref)
        self.absent.discard(ref)
        watch = self._watches.pop(ref, None)
        if watch is not None and self._inotify is not None:
            try:
                self._inotify.rm_watch(watch)
            except (OSError, ValueError) as error:
                _log.debug("a watch of %s had ended: %s", ref, error)

    def _add(self, ref: QueueRef) -> Any:
        from asyncinotify import Mask

        folder = self._root / layout.messages(ref)
        folder.mkdir(parents=True, exist_ok=True)
        return self._inotify.add_watch(folder, Mask.MOVED_TO | Mask.CREATE | Mask.DELETE_SELF | Mask.MOVE_SELF)

    def _fail(self, ref: QueueRef, why: object) -> None:
        _log.warning("queue %s is polled: its watch ended (%s)", ref, why)
        self._watches.pop(ref, None)
        self.polled.add(ref)

    async def run(self, heard: Heard) -> None:
        """Until cancelled."""
        self._begin()
        tasks = [asyncio.ensure_future(self._poll(heard)), asyncio.ensure_future(self._ask(heard))]
        try:
            if self._inotify is None:
                await asyncio.gather(*tasks)
            while True:
                try:
                    await self._listen(heard)
                except OSError as error:
                    for ref in list(self._watches):
                        self._fail(ref, error)
                    self._is_able = False
                    await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
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

    async def _listen(self, heard: Heard) -> None:
        from asyncinotify import Mask

        async for event in self._inotify:
            if event.mask & Mask.Q_OVERFLOW:
                heard(list(self._watches), True)  # what was lost is not known: all of them look
                continue
            ref = next((ref for ref, watch in self._watches.items() if watch is event.watch), None)
            if ref is None:
                continue
            if event.mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED | Mask.UNMOUNT):
                self._fail(ref, event.mask)
                heard([ref], True)
            elif str(event.name).endswith(layout.METADATA):
                heard([ref], True)

    async def _poll(self, heard: Heard) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            if self.polled or self.absent:
                heard([*self.polled, *self.absent], True)

    async def _ask(self, heard: Heard) -> None:
        while True:
            await asyncio.sleep(_ASK_S)
            if waited := [*self._watches, *self.polled, *self.absent]:
                heard(waited, False)


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
