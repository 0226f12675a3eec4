"""What a table of the lake promises, whatever keeps its log."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class Mark(NamedTuple):
    """How far a writer has come: its batches are numbered from 1, and the position is where the next one begins."""

    batch: int
    position: str


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file that is written and not yet part of the table."""

    # Below the table's directory, with `/` between.
    path: str
    size: int
    modified_at: int
    rows: int
    # As text, YYYY-MM-DD; None in a table without days.
    day: str | None = None
    lowest: dict[str, str | None] = {}
    highest: dict[str, str | None] = {}


class Compacted(NamedTuple):
    files_before: int
    files_after: int
    removed: int


class LakeTable(Protocol):
    """Each change is one atomic commit: a reader sees all of it or nothing, and so does a writer that starts again."""

    @property
    def directory(self) -> str: ...

    @property
    def new_files(self) -> str:
        """Where files that are to be appended are written: below `directory`, and read by nobody before the commit."""
        ...

    def exists(self) -> bool: ...

    def mark(self, writer: str) -> Mark | None:
        """Of the writer's last commit; None before its first."""
        ...

    def append(self, files: Sequence[NewFile], *, writer: str | None = None, mark: Mark | None = None) -> bool:
        """Add the files, and move the writer's mark in the same commit. False, and nothing changed, if the writer has
        committed that batch already: by another process, or before it was killed."""
        ...

    def replace(self, files: Sequence[NewFile], days: Sequence[str] | None) -> None:
        """Put the files in the place of everything the table has of these days; None: of all of it."""
        ...

    def files(self, days: Sequence[str] | None = None) -> list[str]:
        """The files that are the table now, as Spark reads them."""
        ...

    def compact(self, *, keep_hours: float) -> Compacted:
        """Join small files, and delete files that no reader of the last hours can still be reading."""
        ...
