"""The directories of a store's databases, and the number of its shards.

    data/HOLDFAST       without shards, the store's only database is beside the marker
    data/db, data/log

    data/HOLDFAST       with shards, the marker says how many there are and which folder contains them
    data/shards-1/0     each shard has its own marker, database and log
    data/shards-1/1

    data/legacy         a database of the legacy layout that is being moved into the store, as the marker says

The number of shards is chosen when a store is made. `holdfast db reshard` writes all shards again into another folder,
and then the marker. Until the marker is written, the store is the old one.
"""

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import make_directory
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.shard_links import resolve_links
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.recovery.marker import (
    MARKER,
    WHOLE_STORE,
    Role,
    check_directory,
    read_marker,
    write_marker,
)
from holdfast.stores.rocks.recovery.opening import DATABASE, make_not_made_error

MAX_SHARDS = 64
# The folder of a legacy database that is being moved into the store.
LEGACY = "legacy"
_FOLDER = re.compile(r"shards-(\d+)")


class Layout(NamedTuple):
    """The directory of a store, and the part of its marker that describes shards."""

    path: Path
    role: Role
    # The shards that this process opens, where several processes have a part of the store open each; None: all.
    only: tuple[int, ...] | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of the shards that this process opens."""
        return tuple(range(self.shards)) if self.only is None else self.only

    @property
    def marks_store(self) -> bool:
        """Return whether this process writes the store's own marker: the one that has the first shard."""
        return self.has_shards and 0 in self.numbers

    @property
    def shards(self) -> int:
        """Return the number of databases; 1 without shards."""
        return self.role.shards

    @property
    def has_shards(self) -> bool:
        """Return whether the databases are in a folder of their own. There may be only one."""
        return self.role.folder is not None

    @property
    def paths(self) -> list[Path]:
        """Return the directory of each database, in the order of the shards."""
        if self.role.folder is None:
            return [self.path]
        return [self.path / self.role.folder / str(number) for number in range(self.shards)]

    def next_folder(self) -> str:
        """Return the name of the folder that the next resharding writes to."""
        found = None if self.role.folder is None else _FOLDER.fullmatch(self.role.folder)
        return f"shards-{1 if found is None else int(found[1]) + 1}"


class Opened(NamedTuple):
    """The open databases of a store in the order of its shards, and the number of the last link between two of them."""

    databases: list[Database]
    last_link: int


def read_layout(path: Path) -> Layout:
    """Return the layout of an existing store. Raise `InvalidArgument` for the directory of a single shard."""
    role = read_marker(path).role
    if role.shard is not None:
        raise InvalidArgument(
            f"{path} is shard {role.shard} of a store: give the store's own directory, {path.parent.parent}",
            field="url",
        )
    return Layout(path, role)


def find_or_make_layout(path: Path, shards: int | None) -> Layout:
    """Return the layout of the store in a locked directory. A new store gets `shards` shards, 1 by default.

    Raise `InvalidArgument` if `shards` is out of range, or if the store has another number of shards.
    """
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise InvalidArgument(f"shards is {shards}: give 1 to {MAX_SHARDS}", field="shards")
    check_directory(path)
    if not (path / MARKER).exists() and shards is not None and shards > 1:
        try:
            write_marker(path, None, Role(shards, Layout(path, Role()).next_folder()))
        except OSError as error:
            raise make_not_made_error(path, error) from None
    layout = read_layout(path)
    if shards is not None and layout.shards != shards:
        raise InvalidArgument(
            f"{path} was made with {layout.shards} shard{'s' if layout.shards > 1 else ''}: leave out shards, or "
            f"change their number with `holdfast db reshard {path} --shards {shards}`",
            field="shards",
        )
    return layout


def open_databases(layout: Layout, lock: DirectoryLock | None, *, has_lost_writes: bool = False) -> Opened:
    """Open every database of a store, or make the databases of a new store.

    `lock` is the caller's lock on the store's directory. `has_lost_writes` is explained in `Database`. All logs are
    read before any of them is written to, because a commit that only one of two shards has must be discarded.
    """
    check_shards(layout)
    if layout.only is None:
        remove_leftovers(layout)
    if not layout.has_shards:
        return Opened([Database(layout.path, lock=lock, has_lost_writes=has_lost_writes, role=layout.role)], 0)
    databases: list[Database] = []
    try:
        for number in layout.numbers:
            directory = layout.paths[number]
            _prepare(layout, directory)
            databases.append(Database(directory, lock=lock, has_lost_writes=has_lost_writes, shard=number))
        last_link = resolve_links(dict(zip(layout.numbers, databases, strict=True)), str(layout.path))
        for database in databases:
            database.begin()
        if layout.marks_store:
            write_marker(layout.path, os.getpid(), layout.role._replace(is_made=True))
    except BaseException:
        for database in databases:
            database.discard()
        raise
    return Opened(databases, last_link)


def note_closed(layout: Layout) -> None:
    """Record in the marker of a store with shards that no process has it open."""
    if layout.marks_store:
        write_marker(layout.path, None, layout.role._replace(is_made=True))


def end_legacy(layout: Layout, databases: list[Database]) -> Layout:
    """Record in the marker that nothing of a legacy database is left to move, and return the new layout."""
    role = layout.role._replace(has_legacy=False) if layout.has_shards else WHOLE_STORE
    ended = layout._replace(role=role)
    write_marker(layout.path, os.getpid(), ended.role)
    if not ended.has_shards:
        databases[0].role = ended.role
    return ended


def refuse_legacy(layout: Layout, verb: str) -> None:
    """Raise `StoreUnavailable` if messages of the legacy layout are still being moved into the store."""
    if layout.role.has_legacy:
        raise StoreUnavailable(
            f"{layout.path} cannot be {verb} while messages of the legacy layout are being moved into it: let the "
            f"program that has it open finish, or run `holdfast db migrate {layout.path}`",
            path=str(layout.path),
        )


def remove_leftovers(layout: Layout) -> None:
    """Remove the files that an interrupted resharding left, whether or not it took effect, and those of a legacy
    database that was moved."""
    named = layout.role.folder
    leftovers = [each for each in layout.path.glob("shards-*") if _FOLDER.fullmatch(each.name) and each.name != named]
    if named is not None:
        leftovers += [layout.path / DATABASE, layout.path / LOG]
    if not layout.role.has_legacy:
        leftovers.append(layout.path / LEGACY)
    for each in leftovers:
        shutil.rmtree(each, ignore_errors=True)


def check_shards(layout: Layout) -> None:
    """Raise `StoreUnavailable` if a shard that was made once is missing, or if there are more shards than the marker
    says.

    Call this before `remove_leftovers`: a marker that names another folder may be damaged.
    """
    if not layout.has_shards and not (layout.path / DATABASE).exists() and any(layout.path.glob("shards-*")):
        raise StoreUnavailable(
            f"{layout.path / MARKER} is damaged: it says that there are no shards, but there is no other database; "
            "restore a backup",
            path=str(layout.path),
        )
    if not layout.role.is_made:
        return
    for number, directory in enumerate(layout.paths):
        if not (directory / MARKER).exists():
            raise StoreUnavailable(
                f"{directory} is missing: it is shard {number} of the store in {layout.path}; put it back, or restore "
                "a backup",
                path=str(layout.path),
            )
    surplus = layout.paths[0].with_name(str(layout.shards))
    if layout.has_shards and surplus.exists():
        raise StoreUnavailable(
            f"{layout.path / MARKER} is damaged: it says that there are {layout.shards} shards, but {surplus} is one "
            "more; restore a backup",
            path=str(layout.path),
        )


def _prepare(layout: Layout, directory: Path) -> None:
    if (directory / MARKER).exists():
        return
    try:
        make_directory(directory.parent)
        make_directory(directory)
    except OSError as error:
        raise make_not_made_error(layout.path, error) from None
