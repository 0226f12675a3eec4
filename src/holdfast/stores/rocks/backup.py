"""A copy of a store that another process may be writing to, made from its files alone.

RocksDB lets one process open a store. A second one may open it for reading, but a checkpoint made from there silently
leaves out the log, and with it everything since the last flush. So the files themselves are copied, as after a crash:

    tables     never change once the manifest names them
    manifest   says which tables and logs make up the store; it only grows
    logs       only grow; a beginning of the last one is the store of a moment ago

Every file is opened first, which takes milliseconds and keeps it readable even once the owner has deleted it. If the
manifest is then still what it was, nothing it names can have gone in between, and what is open is the whole store: the
sizes of that moment are copied, for however long that takes. Else the owner has just flushed, and we look again.
"""

import os
import resource
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.rocks.database import DATABASE, Database
from holdfast.stores.rocks.marker import MARKER, check_directory, write_marker
from holdfast.stores.syncing import make_directory, sync_file

# A flush is seldom; one in each of so many looks is not to be expected.
_MAX_LOOKS = 100
_PIECE = 8 << 20


class Backup(NamedTuple):
    files: int
    bytes: int


class _Pinned(NamedTuple):
    name: str
    file: BinaryIO
    size: int


def backup(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Backup:
    """Copy a store, in use or not, into a new directory. It holds everything that was answered before the call."""
    store, place = Path(source), Path(target)
    if not (store / MARKER).exists():
        raise InvalidArgument(f"{store} holds no store: give the directory that `holdfast.open` was given", field="dir")
    check_directory(store)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidArgument(f"{place} is not an empty directory: give a new one", field="target")
    if place.resolve().is_relative_to(store.resolve()):
        raise InvalidArgument(f"{place} lies inside the store: give a directory outside of it", field="target")
    _allow_many_files()
    with ExitStack() as stack:
        pinned = _pin(store / DATABASE, stack)
        copied = Backup(len(pinned), sum(each.size for each in pinned))
        try:
            make_directory(place / DATABASE)
            for each in pinned:
                _copy(each, place / DATABASE / each.name)
        except OSError as error:
            raise StoreUnavailable(
                f"the backup to {place} broke off: {error}; remove {place} and try again", path=str(place)
            ) from None
    # Last: without it, the half of a backup is not taken for a store.
    write_marker(place, None)
    # As after a crash: the log is replayed, and what cannot be opened is found out now.
    Database(place).close()
    return copied


def _pin(directory: Path, stack: ExitStack) -> list[_Pinned]:
    for _ in range(_MAX_LOOKS):
        with ExitStack() as opened:
            pinned = _look(directory, opened)
            if pinned is not None:
                stack.push(opened.pop_all())
                return pinned
    raise StoreUnavailable(f"{directory.parent} changes too fast to be copied: try again", path=str(directory.parent))


def _look(directory: Path, opened: ExitStack) -> list[_Pinned] | None:
    """Every file of the store at one moment; None if the moment passed meanwhile."""
    try:
        before = _manifest(directory)
        pinned = []
        # By name, and so the logs in their order: a later one must not be longer than what is read of an earlier.
        for path in sorted(directory.iterdir()):
            if path.suffix in (".sst", ".log", ".blob") or path.name.startswith(("OPTIONS-", "rocksdict-config")):
                file = opened.enter_context(path.open("rb"))
                pinned.append(_Pinned(path.name, file, os.fstat(file.fileno()).st_size))
        name, size = before
        manifest = opened.enter_context((directory / name).open("rb"))
        current = opened.enter_context((directory / "CURRENT").open("rb"))
        pinned += [_Pinned(name, manifest, size), _Pinned("CURRENT", current, os.fstat(current.fileno()).st_size)]
        return pinned if _manifest(directory) == before else None
    except FileNotFoundError:
        return None  # a file went between the listing and the opening


def _manifest(directory: Path) -> tuple[str, int]:
    name = (directory / "CURRENT").read_text().strip()
    return name, (directory / name).stat().st_size


def _copy(pinned: _Pinned, to: Path) -> None:
    remaining = pinned.size
    with to.open("wb") as copy:
        while remaining and (piece := pinned.file.read(min(_PIECE, remaining))):
            copy.write(piece)
            remaining -= len(piece)
        copy.flush()
        sync_file(copy.fileno())
    if remaining:
        raise OSError(f"{pinned.name} became shorter while it was read")


def _allow_many_files() -> None:
    """Every table is open at once: as many as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
