"""Share syncs of a directory between the threads that wait for one."""

import os
from dataclasses import dataclass, field
from threading import Lock

from holdfast.stores.disk.file_sync import sync_directory


@dataclass(slots=True)
class _DirectorySync:
    """The syncs of one directory: the number asked for, and the number up to which they are done."""

    wanted: int = 0
    done: int = 0
    turn: Lock = field(default_factory=Lock)


class DirectorySyncs:
    """Syncs of the directories of a bucket.

    A sync covers the names that were changed before it began. So of the threads that wait while one syncs, the next one
    syncs for all of them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._directories: dict[str, _DirectorySync] = {}

    def sync(self, directory: str | os.PathLike[str]) -> None:
        """Return once the directory's entries of now are on disk."""
        with self._lock:
            shared = self._directories.setdefault(os.fspath(directory), _DirectorySync())
            shared.wanted += 1
            ticket = shared.wanted
        with shared.turn:
            if shared.done >= ticket:
                return
            with self._lock:
                covered = shared.wanted
            sync_directory(directory)
            shared.done = covered
