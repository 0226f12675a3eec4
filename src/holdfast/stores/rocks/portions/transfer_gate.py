"""The exclusion of backups and moves between the portions of a divided store.

A backup copies one shard after the other. A message that moves between two of them meanwhile could be in both copies,
or in none. So moves hold a shared lock (`flock`) on the folder with the shards, and a backup, which is another process,
an exclusive one.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.background import sleep_for
from holdfast.clock import sleep
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime
from holdfast.stores.rocks.recovery.layout import Layout

_PAUSE_MS = 20
_TRIES = 1_500


class TransferGate:
    """The shared lock of the moves under way."""

    def __init__(self, layout: Layout, runtime: Runtime) -> None:
        self._folder = layout.paths[0].parent
        self._runtime = runtime
        self._descriptor: int | None = None

    async def enter(self) -> None:
        """Wait until no backup is being made, and hold the lock. Raise `StoreUnavailable` after half a minute."""
        for _ in range(_TRIES):
            if self._descriptor is not None or self._take():
                return
            await sleep_for(self._runtime.clock, _PAUSE_MS)
        raise StoreUnavailable("a backup of the store is being made, and moves wait for its end: try again later")

    def leave(self) -> None:
        """Release the lock, because no move is under way any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> bool:
        descriptor = _lock(self._folder, fcntl.LOCK_SH)
        if descriptor is not None:
            self._descriptor = descriptor
        return descriptor is not None


@contextmanager
def no_transfers(folder: Path) -> Iterator[None]:
    """Keep the processes of a divided store from moving messages between shards, once the moves under way have ended.

    Raise `StoreUnavailable` if they do not end within half a minute.
    """
    descriptor: int | None = None
    for _ in range(_TRIES):
        if (descriptor := _lock(folder, fcntl.LOCK_EX)) is not None:
            break
        sleep(_PAUSE_MS / 1_000)
    if descriptor is None:
        raise StoreUnavailable(
            f"the backup was not begun: messages are moving between the store processes of {folder.parent}; try again",
            path=str(folder.parent),
        )
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, kind: int) -> int | None:
    """Return an open descriptor with the lock, or None if another process has one that excludes it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
