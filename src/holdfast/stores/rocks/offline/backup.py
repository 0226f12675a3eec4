"""A copy of a store that another process may be writing to, made from its files alone.

RocksDB lets one process open a store. A second one may open it for reading, but a checkpoint made from there silently
leaves out the log, and with it everything since the last flush. So the files themselves are copied, as after a crash:

    tables     never change once the manifest names them
    manifest   says which tables make up RocksDB; it only grows
    segments   of the commit log: frames are added at the end, until RocksDB has them and the file is used again

Every file is opened first, which takes milliseconds and keeps it readable even once the owner has deleted it. If the
manifest is then still what it was, nothing it names can have gone in between, and no segment that it needs has been
used again: what is open is the whole store, however long copying takes. Else the owner has just flushed, and we look
again. A segment that was used again while it was copied shows it by its header, and we begin again.

The files of all shards are opened before any is copied. Their logs are then read one after the other, and one may have
the half of a link whose other half came too late: the copy leaves it out when it is first opened (links.py).
"""

import os
import resource
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.file_sync import make_directory, sync_file
from holdfast.stores.rocks.engine.database import check_target
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import (
    FIRST_FRAME_OFFSET,
    find_whole_part,
    has_header,
    list_segments,
    segment_path,
)
from holdfast.stores.rocks.recovery.layout import Layout, note_closed, open_databases, read_layout
from holdfast.stores.rocks.recovery.marker import MARKER, check_directory, read_marker, write_marker
from holdfast.stores.rocks.recovery.opening import DATABASE

# A flush is seldom; one in each of so many looks is not to be expected.
_MAX_LOOKS = 100
_PIECE = 8 << 20


class Backup(NamedTuple):
    files: int
    bytes: int


class _Pinned(NamedTuple):
    """An open file of the store, by its name below the store's directory."""

    name: str
    file: BinaryIO
    size: int
    # Set for a segment of the log, whose size is found out when it is copied.
    generation: int | None = None


def backup(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Backup:
    """Copy a store, in use or not, into a new directory. It holds everything that was answered before the call."""
    store, place = Path(source), Path(target)
    if not (store / MARKER).exists():
        raise InvalidArgument(f"{store} holds no store: give the directory that `holdfast.open` was given", field="dir")
    check_directory(store)
    check_target(place)
    if place.resolve().is_relative_to(store.resolve()):
        raise InvalidArgument(f"{place} lies inside the store: give a directory outside of it", field="target")
    _allow_many_files()
    for _ in range(_MAX_LOOKS):
        layout = read_layout(store)
        copy = Layout(place, layout.role._replace(is_made=True))
        with ExitStack() as stack:
            markers = [read_marker(path) for path in layout.paths]
            pinned = [_look(path, stack) for path in layout.paths]
            if None in pinned or [read_marker(path) for path in layout.paths] != markers:
                continue  # it was flushed, opened or closed in between
            try:
                copied = [
                    _copy_all(each, path) for each, path in zip(pinned, copy.paths, strict=True) if each is not None
                ]
            except OSError as error:
                raise StoreUnavailable(
                    f"the backup to {place} broke off: {error}; remove {place} and try again", path=str(place)
                ) from None
            if None not in copied:
                break
    else:
        raise StoreUnavailable(f"{store} changes too fast to be copied: try again", path=str(store))
    # Last: without it, the half of a backup is not taken for a store. As the store's own: if that names an owner, the
    # copy is opened as after a kill, and must have a log.
    for path, marker in zip(copy.paths, markers, strict=True):
        write_marker(path, marker.pid, marker.role, format=marker.format, closed_state=marker.closed_state)
    if copy.has_shards:
        write_marker(place, None, copy.role)
    # The log is replayed, and what cannot be opened is found out now.
    for database in open_databases(copy, None).databases:
        database.close()
    note_closed(copy)
    parts = [each for each in copied if each is not None]
    return Backup(sum(each.files for each in parts), sum(each.bytes for each in parts))


def _copy_all(pinned: list[_Pinned], place: Path) -> Backup | None:
    """Copy all files; return None if a segment was used again meanwhile."""
    for folder in (DATABASE, LOG):
        make_directory(place / folder)
    size, log_continues = 0, True
    segments = [each.generation for each in pinned if each.generation is not None]
    for each in pinned:
        to = place / each.name
        if each.generation is None:
            _copy(each, to)
            size += each.size
            continue
        if not log_continues:
            continue  # it has frames that follow those that were written while the segment before it was copied
        raw = each.file.read()
        end, log_continues = find_whole_part(raw, each.generation, segments)
        raw = raw[:end]
        each.file.seek(0)
        if not has_header(each.file.read(FIRST_FRAME_OFFSET), each.generation):
            return None
        with to.open("wb") as copy:
            copy.write(raw)
            copy.flush()
            sync_file(copy.fileno())
        size += len(raw)
    return Backup(len(pinned), size)


def _look(store: Path, opened: ExitStack) -> list[_Pinned] | None:
    """Every file of the store at one moment; None if the moment passed meanwhile."""
    directory = store / DATABASE
    try:
        before = _manifest(directory)
        pinned = []
        # By name, and so the logs in their order: a later one must not be longer than what is read of an earlier.
        for path in sorted(directory.iterdir()):
            if path.suffix in (".sst", ".log", ".blob") or path.name.startswith(("OPTIONS-", "rocksdict-config")):
                file = opened.enter_context(path.open("rb"))
                pinned.append(_Pinned(f"{DATABASE}/{path.name}", file, os.fstat(file.fileno()).st_size))
        for generation in list_segments(store / LOG):
            segment = segment_path(store / LOG, generation)
            file = opened.enter_context(segment.open("rb"))
            pinned.append(_Pinned(f"{LOG}/{segment.name}", file, 0, generation))
        name, size = before
        manifest = opened.enter_context((directory / name).open("rb"))
        current = opened.enter_context((directory / "CURRENT").open("rb"))
        pinned += [
            _Pinned(f"{DATABASE}/{name}", manifest, size),
            _Pinned(f"{DATABASE}/CURRENT", current, os.fstat(current.fileno()).st_size),
        ]
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
