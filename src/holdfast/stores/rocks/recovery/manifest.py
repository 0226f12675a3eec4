"""RocksDB's list of its files, where a power cut has left it torn in the middle.

The list (MANIFEST) has the format of a log: one record for each change of the set of files, synced before anything that
the change makes needless is deleted. RocksDB takes an end that is cut short for the end, but refuses one with a hole,
as a power cut leaves it when the disk writes a later part of an unsynced change before an earlier one.

What stands before the hole is the list as it was. It is enough if the log that it goes on from is still there: then the
change behind it had not been carried out, and all it would have told is in the logs. RocksDB itself looks whether every
file of the list is there. If that log is gone, the change had been synced and the disk has lost it: that is an error,
even where RocksDB would take what is left for an end that is cut short, and delete the files it does not tell of.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.disk.file_sync import sync_directory, sync_file
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.recovery.wal_records import (
    BLOCK,
    FIRST,
    HEADER_SIZE,
    LAST,
    WHOLE,
    chain_end,
    checksum_holds,
    records_of,
)

_SAVED = ".torn"
_FIRST_LIST = "MANIFEST-000001"
_UNREADABLE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError)

# Fields of a change, as RocksDB numbers them: `n` is a number, `s` a string, each in turn.
_LOG_NUMBER, _OLDEST_LOG, _FAMILY, _FAMILY_ADD, _FAMILY_DROP, _IN_GROUP, _NEW_FILE = 2, 10, 200, 201, 202, 300, 103
_FIELDS = {
    1: "s",  # comparator
    _LOG_NUMBER: "n",
    3: "n",  # next file
    4: "n",  # last sequence
    5: "ns",  # where a compaction goes on
    6: "nn",  # a file that goes
    9: "n",  # previous log
    _OLDEST_LOG: "n",
    _NEW_FILE: "nnnssnn",  # a file that comes; more fields of its own follow
    _FAMILY: "n",
    _FAMILY_ADD: "s",
    _FAMILY_DROP: "",
    203: "n",  # highest family
    _IN_GROUP: "n",
}
# Whatever has this bit is a string that may be passed over.
_PASSED_OVER = 1 << 13
_LAST_OF_FILE = 1
_KEPT = -1


def forget_lost_beginning(directory: Path, *, is_unmade: bool) -> None:
    """If the list that CURRENT names is not there because a power cut ended the making of the store, let RocksDB begin
    again: nothing was ever in the store.

    The first opening names two lists, and syncs the directory that has their names after each. The first list of all is
    replaced before that opening ends. Of the second one the name alone does not tell; `is_unmade` says that the first
    opening had not ended.
    """
    current = directory / "CURRENT"
    try:
        named = manifest_of(directory)
        if named.exists():
            return
    except _UNREADABLE:
        return  # none yet, or RocksDB says what is wrong
    if is_unmade and not any(directory.glob("*.sst")):
        # RocksDB makes no database where it finds a log. The log is empty, for ours is written instead. CURRENT goes
        # last: as long as it is there, another power cut leads here again.
        for log in directory.glob("*.log"):
            log.unlink()
        sync_directory(directory)
        current.unlink()
    elif named.name == _FIRST_LIST:
        current.unlink()


def mend_manifest(directory: Path, *, was_opened: bool, cuts: bool) -> Path | None:
    """Look at the list, and cut it at its first hole if that loses nothing. Answers where it is kept as it was.

    Without `cuts` nothing is changed: an end that a kill cut short RocksDB takes as it is. `was_opened` is False if the
    store may never have been opened to the end: then the list may not be complete, and there is nothing to lose.
    """
    try:
        manifest = manifest_of(directory)
        end, changes = _read(manifest)
    except _UNREADABLE:
        return None  # none yet, or RocksDB says what is wrong
    if end == manifest.stat().st_size:
        return None
    needed = _needed_log(changes)
    if needed is None and not was_opened and not any(directory.glob("*.sst")):
        return None
    if needed is None or not _has_log(manifest, needed):
        raise StoreUnavailable(
            f"{manifest} is damaged at byte {end}: restore a backup", path=str(directory.parent), file=str(manifest)
        )
    if not cuts:
        return None
    saved = manifest.with_name(manifest.name + _SAVED)
    shutil.copyfile(manifest, saved)
    with manifest.open("r+b") as file:
        file.truncate(end)
        sync_file(file.fileno())
    return saved


def is_whole(directory: Path) -> bool:
    """Return whether the list that CURRENT names can be read to its end; also if there is none yet."""
    try:
        manifest = manifest_of(directory)
        return _read(manifest)[0] == manifest.stat().st_size
    except _UNREADABLE:
        return True


def return_to_list_before(directory: Path) -> Path | None:
    """If the list that CURRENT names is not there, name the one before, if that loses nothing. Answers where CURRENT is
    kept as it was.

    RocksDB writes a new list at every opening, names it, syncs the directory that has both names, and deletes the list
    before and its logs only then. A power cut before that sync may keep the naming and take the list. If the log that
    the list before goes on from is gone, the new one had been in use, and nothing is changed.
    """
    current = directory / "CURRENT"
    try:
        named = manifest_of(directory)
        if named.exists():
            return None
        lists = {_number_of(each): each for each in directory.glob("MANIFEST-*") if not each.suffix}
        before = lists[max(number for number in lists if number < _number_of(named))]
        end, changes = _read(before)
    except _UNREADABLE:
        return None
    needed = _needed_log(changes)
    if end < before.stat().st_size or needed is None or not _has_log(before, needed):
        return None
    saved, fresh = (current.with_name(current.name + suffix) for suffix in (_SAVED, ".new"))
    shutil.copyfile(current, saved)
    with fresh.open("w") as file:
        file.write(f"{before.name}\n")
        file.flush()
        sync_file(file.fileno())
    fresh.replace(current)
    sync_directory(directory)
    return saved


def oldest_needed_log(directory: Path) -> int | None:
    """RocksDB reads no log that is older, so nothing depends on what is in it or whether it is there: it is deleted in
    no order that a power cut keeps. None if the list does not tell."""
    try:
        _, changes = _read(manifest_of(directory))
    except _UNREADABLE:
        return None
    return _needed_log(changes)


def manifest_of(directory: Path) -> Path:
    """Return the list of files that CURRENT names."""
    return directory / (directory / "CURRENT").read_text().strip()


def _has_log(manifest: Path, needed: int) -> bool:
    """Whether the log is there, or the one that was begun together with this list: at an opening all older logs are
    done with, and the list says no more than that."""
    begun = _number_of(manifest) - 1
    return any((manifest.parent / f"{number:06}.log").exists() for number in (needed, begun) if number >= needed)


def _number_of(manifest: Path) -> int:
    return int(manifest.name.removeprefix("MANIFEST-"))


def put_back(saved: Path) -> None:
    saved.replace(saved.with_name(saved.name.removesuffix(_SAVED)))


def _read(manifest: Path) -> tuple[int, list[bytes]]:
    """How far whole changes go, and those changes."""
    changes: list[bytes] = []
    parts, end = b"", 0
    raw = manifest.read_bytes()
    for block in range(0, len(raw), BLOCK):
        stop = min(block + BLOCK, len(raw))
        chain = chain_end(raw, block, stop)
        for at, after, type in records_of(raw, block, chain):
            if not checksum_holds(raw, at, after):
                return end, changes
            data = raw[at + HEADER_SIZE : after]
            parts = data if type in (WHOLE, FIRST) else parts + data
            if type in (WHOLE, LAST):
                changes.append(parts)
                end = after
        # A full block may end in padding that is shorter than a header. Anywhere else such a rest is a torn record.
        if stop - chain >= HEADER_SIZE or (chain < stop and stop - block < BLOCK):
            return end, changes
    return (len(raw) if not parts or end > len(raw) - HEADER_SIZE else end), changes


def _needed_log(changes: list[bytes]) -> int | None:
    """The oldest log that the list goes on from; None if it does not tell, or does not name every family."""
    names: dict[int, bytes] = {}
    # By family; besides, the oldest that is kept, whatever families say that had nothing to flush.
    logs: dict[int, int] = {}
    group: list[list[tuple[int, list[int | bytes]]]] = []
    for change in changes:
        fields = _fields_of(change)
        if fields is None:
            return None
        group.append(fields)
        # Of a group that is not complete RocksDB takes nothing.
        if not any(tag == _IN_GROUP and values[0] for tag, values in fields):
            for each in group:
                _apply(each, names, logs)
            group = []
    wanted = {name.encode() for name in keys.FAMILY_NAMES}
    if not wanted <= set(names.values()):
        return None
    # A family that is older than the first log says 0.
    oldest = min((logs[family] for family in names if logs.get(family)), default=None)
    return None if oldest is None else max(oldest, logs.get(_KEPT, 0))


def _apply(fields: list[tuple[int, list[int | bytes]]], names: dict[int, bytes], logs: dict[int, int]) -> None:
    family = next((int(values[0]) for tag, values in fields if tag == _FAMILY), 0)
    names.setdefault(0, keys.FAMILY_NAMES[keys.DIRECTORY].encode())
    for tag, values in fields:
        if tag == _FAMILY_ADD:
            names[family] = bytes(values[0])
        elif tag == _FAMILY_DROP:
            names.pop(family, None)
        elif tag == _LOG_NUMBER:
            logs[family] = int(values[0])
        elif tag == _OLDEST_LOG:
            logs[_KEPT] = int(values[0])


def _fields_of(change: bytes) -> list[tuple[int, list[int | bytes]]] | None:
    """None if it is not understood."""
    try:
        return list(_fields(change))
    except (IndexError, ValueError):
        return None


def _fields(change: bytes) -> Iterator[tuple[int, list[int | bytes]]]:
    at = 0
    while at < len(change):
        tag, at = _number(change, at)
        shape = _FIELDS.get(tag) or ("s" if tag & _PASSED_OVER else None)
        if shape is None and tag != _FAMILY_DROP:
            raise ValueError(f"unknown field {tag}")
        values: list[int | bytes] = []
        for kind in shape or "":
            value, at = _number(change, at) if kind == "n" else _string(change, at)
            values.append(value)
        while tag == _NEW_FILE:
            more, at = _number(change, at)
            if more == _LAST_OF_FILE:
                break
            _, at = _string(change, at)
        yield tag, values


def _number(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] >= 0x80:
        value |= (raw[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | raw[at] << shift, at + 1


def _string(raw: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(raw, at)
    if at + size > len(raw):
        raise ValueError("cut short")
    return raw[at : at + size], at + size
