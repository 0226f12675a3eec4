"""A backup of a store that another process may be writing to, made by copying its files.

RocksDB lets only one process open a database for writing. Another process may open it for reading, but a checkpoint
made there silently leaves out the log, and with it every change since the last flush. So the files are copied, in the
state that a crash would leave them in:

    tables     do not change once the manifest names them
    manifest   lists the tables of the database; it only grows
    segments   of the commit log: frames are appended until RocksDB has them; then the file is reused

First all files are opened, which takes milliseconds; an open file stays readable even after the owner deletes it. If
the manifest has not changed by then, no file that it names was deleted and no segment that it needs was reused in
between. So the open files are the complete store, however long copying takes. Otherwise the owner has just flushed, and
all files are opened again. The header of a segment shows whether it was reused while it was copied; then the backup
starts over.

The processes of a divided store move no messages between shards meanwhile (`portions/transfer_gate.py`).

The files of all shards are opened before any of them is copied. The logs are then read one after the other. So a copied
log may have one half of a link, and the other half may have come too late for its copy. The half is then left out when
the copy is first opened (`engine/shard_links.py`).
"""

import os
import resource
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock
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
from holdfast.stores.rocks.portions.transfer_gate import no_transfers
from holdfast.stores.rocks.recovery.layout import LEGACY, Layout, note_closed, open_databases, read_layout
from holdfast.stores.rocks.recovery.marker import MARKER, check_directory, read_marker, write_marker
from holdfast.stores.rocks.recovery.opening import DATABASE

# Number of attempts to open all files between two flushes. Flushes are rare, so this many failures in a row are not
# expected.
_MAX_ATTEMPTS = 100
_PIECE = 8 << 20


class Backup(NamedTuple):
    """The number and size of the files that a backup has copied."""

    files: int
    bytes: int


class _Pinned(NamedTuple):
    """An open file of the store. `name` is its path relative to the store's directory."""

    name: str
    file: BinaryIO
    size: int
    # Set for a segment of the log. Its size is determined when it is copied.
    generation: int | None = None


def backup(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Backup:
    """Copy a store, in use or not, into a new directory.

    The copy has every change that was acknowledged before the call. Raise `InvalidArgument` for a wrong source or
    target, `StoreUnavailable` if copying fails.
    """
    store, copy_path = Path(source), Path(target)
    if not (store / MARKER).exists():
        raise InvalidArgument(f"{store} holds no store: give the directory that `holdfast.open` was given", field="dir")
    check_directory(store)
    check_target(copy_path)
    if copy_path.resolve().is_relative_to(store.resolve()):
        raise InvalidArgument(f"{copy_path} is inside the store: give a directory outside of it", field="target")
    _allow_many_files()
    if read_layout(store).role.has_legacy:
        return _back_up_legacy(store, copy_path)
    return _back_up(store, copy_path)


def _back_up_legacy(store: Path, copy_path: Path) -> Backup:
    """Copy a store with messages of the legacy layout, which no process may have open: only the process that moves them
    can copy both layouts as of one moment."""
    lock = DirectoryLock.take(store)
    if lock is None:
        raise StoreUnavailable(
            f"{store} is in use, and its messages of the legacy layout are being moved: let that end first, or call "
            "the backup of the program that has it open",
            path=str(store),
        )
    try:
        copied = _back_up(store, copy_path)
        files = [each for each in (store / LEGACY).iterdir() if each.is_file()]
        shutil.copytree(store / LEGACY, copy_path / LEGACY)
        return Backup(copied.files + len(files), copied.bytes + sum(each.stat().st_size for each in files))
    finally:
        lock.release()


def _back_up(store: Path, copy_path: Path) -> Backup:
    for _ in range(_MAX_ATTEMPTS):
        layout = read_layout(store)
        copy = Layout(copy_path, layout.role._replace(is_made=layout.has_shards))
        with ExitStack() as stack:
            if layout.has_shards and layout.paths[0].parent.is_dir():
                stack.enter_context(no_transfers(layout.paths[0].parent))
            markers = [read_marker(path) for path in layout.paths]
            pinned = [_open_files(path, stack) for path in layout.paths]
            if None in pinned or [read_marker(path) for path in layout.paths] != markers:
                continue  # the store was flushed, opened or closed in between
            try:
                # The first shard comes last: the others may have queues of tenants that were made meanwhile.
                every = list(zip(pinned, copy.paths, strict=True))
                copied = [_copy_all(each, path) for each, path in reversed(every) if each is not None]
            except OSError as error:
                raise StoreUnavailable(
                    f"the backup to {copy_path} failed: {error}; remove {copy_path} and try again", path=str(copy_path)
                ) from None
            if None not in copied:
                break
    else:
        raise StoreUnavailable(f"{store} changed in {_MAX_ATTEMPTS} attempts to copy it: try again", path=str(store))
    # Written last: without the marker, an incomplete backup is not taken for a store. It is a copy of the store's
    # marker: if that names an owner, the copy is opened like a store whose owner was killed, and must have a log.
    for path, marker in zip(copy.paths, markers, strict=True):
        write_marker(path, marker.pid, marker.role, format=marker.format, closed_state=marker.closed_state)
    if copy.has_shards:
        write_marker(copy_path, None, copy.role)
    # Open the copy, to replay the log and to find a damaged copy now.
    for database in open_databases(copy, None).databases:
        database.close()
    note_closed(copy)
    parts = [each for each in copied if each is not None]
    return Backup(sum(each.files for each in parts), sum(each.bytes for each in parts))


def _copy_all(pinned: list[_Pinned], target: Path) -> Backup | None:
    """Copy all files. Return None if a segment was reused meanwhile."""
    for folder in (DATABASE, LOG):
        make_directory(target / folder)
    size, log_continues = 0, True
    segments = [each.generation for each in pinned if each.generation is not None]
    for each in pinned:
        to = target / each.name
        if each.generation is None:
            _copy(each, to)
            size += each.size
            continue
        if not log_continues:
            continue  # the previous segment was copied before its last frames, so these frames would follow a gap
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


def _open_files(store: Path, opened: ExitStack) -> list[_Pinned] | None:
    """Open all files of the store as of one moment. Return None if the manifest changed meanwhile."""
    directory = store / DATABASE
    try:
        before = _manifest(directory)
        pinned = []
        # Sorted by name, so that RocksDB's logs are opened in their order: a later log must not have changes that
        # follow those missing from the copy of an earlier one.
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
        return None  # a file was deleted between listing and opening it


def _manifest(directory: Path) -> tuple[str, int]:
    """Return the name and the size of RocksDB's current manifest."""
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
        raise OSError(f"{pinned.name} became shorter while it was copied")


def _allow_many_files() -> None:
    """Raise the limit on open files to the maximum allowed, because all tables are open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
