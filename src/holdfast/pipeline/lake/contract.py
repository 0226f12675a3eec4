"""The contract of the lake's tables, whatever the format of their log."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class Mark(NamedTuple):
    """The progress of a writer: the number of its last batch, from 1, and the position where the next one begins."""

    batch: int
    position: str


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file that was written, and is not yet part of the table."""

    # Relative to the table's directory, separated by `/`.
    path: str
    size: int
    modified_at: int
    rows: int
    # YYYY-MM-DD. None in a table without days.
    day: str | None = None
    lowest: dict[str, str | None] = {}
    highest: dict[str, str | None] = {}


class Compacted(NamedTuple):
    """The number of files before and after a compaction, and of deleted files."""

    files_before: int
    files_after: int
    removed: int


class LakeTable(Protocol):
    """A table. Each change is one atomic commit: readers and restarted writers see all of it or nothing."""

    @property
    def directory(self) -> str: ...

    @property
    def new_files(self) -> str:
        """The directory, below `directory`, for files that will be appended. Readers ignore it before the commit."""
        ...

    def exists(self) -> bool:
        """Return whether the table was created."""

    def mark(self, writer: str) -> Mark | None:
        """Return the mark of the writer's last commit, or None before its first."""
        ...

    def append(self, files: Sequence[NewFile], *, writer: str | None = None, mark: Mark | None = None) -> bool:
        """Add the files and set the writer's mark in one commit.

        Return False, without a change, if the writer has already committed that batch: in another process, or before it
        was killed.
        """
        ...

    def replace(self, files: Sequence[NewFile], days: Sequence[str] | None) -> None:
        """Replace all rows of these days (None: all rows of the table) by the files, in one commit."""
        ...

    def files(self, days: Sequence[str] | None = None) -> list[str]:
        """Return the paths or URLs of the table's current files."""
        ...

    def compact(self, *, keep_hours: float) -> Compacted:
        """Merge small files, and delete unreferenced files that are older than `keep_hours`."""
        ...
