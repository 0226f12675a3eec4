"""Repair of RocksDB's manifest, its list of files, after a power cut has left it torn.

The manifest has the format of a log, with one record for each change of the set of files. RocksDB syncs a change before
it deletes anything that the change makes obsolete. It accepts a manifest that is cut short, but refuses one with a
hole. A power cut leaves a hole if the disk writes a later part of an unsynced change before an earlier one.

The changes before the hole are a complete, older manifest. It is sufficient if the log that it refers to still exists:
then the change behind the hole had not taken effect, and everything it described is in the logs. RocksDB itself checks
that every listed file exists. If that log is missing, the change had been synced and the disk has lost it. That is an
error, even where RocksDB would accept the manifest as cut short and delete the files that it does not list.
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
    find_chain_end,
    has_valid_checksum,
    list_records,
)

_SAVED = ".torn"
_FIRST_LIST = "MANIFEST-000001"
_UNREADABLE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError)

# The fields of a change with RocksDB's tags. `n` is a number, `s` a string.
_LOG_NUMBER, _OLDEST_LOG, _FAMILY, _FAMILY_ADD, _FAMILY_DROP, _IN_GROUP, _NEW_FILE = 2, 10, 200, 201, 202, 300, 103
_FIELDS = {
    1: "s",  # comparator
    _LOG_NUMBER: "n",
    3: "n",  # next file
    4: "n",  # last sequence
    5: "ns",  # compaction pointer
    6: "nn",  # deleted file
    9: "n",  # previous log
    _OLDEST_LOG: "n",
    _NEW_FILE: "nnnssnn",  # new file; custom fields follow
    _FAMILY: "n",
    _FAMILY_ADD: "s",
    _FAMILY_DROP: "",
    203: "n",  # highest family
    _IN_GROUP: "n",
}
# A field with this bit in its tag is a string that may be ignored.
_IGNORABLE = 1 << 13
_LAST_OF_FILE = 1
_OLDEST_KEPT = -1


def discard_unfinished_manifest(directory: Path, *, is_unmade: bool) -> None:
    """Let RocksDB start again if a power cut during the creation of the store has lost the manifest that CURRENT names.

    Nothing was ever in the store then. The first opening writes and names two manifests, and syncs the directory after
    each naming. The very first manifest is replaced before that opening ends, so its name proves that the opening had
    not ended. The name of the second one proves nothing; `is_unmade` says that the first opening had not ended.
    """
    current = directory / "CURRENT"
    try:
        named = find_manifest(directory)
        if named.exists():
            return
    except _UNREADABLE:
        return  # there is none yet, or RocksDB reports the problem
    if is_unmade and not any(directory.glob("*.sst")):
        # RocksDB creates no database in a directory that has a log. These logs are empty, because Holdfast writes its
        # own log instead. CURRENT is deleted last: as long as it exists, another power cut leads here again.
        for log in directory.glob("*.log"):
            log.unlink()
        sync_directory(directory)
        current.unlink()
    elif named.name == _FIRST_LIST:
        current.unlink()


def repair_manifest(directory: Path, *, was_opened: bool, cuts: bool) -> Path | None:
    """Check the manifest, and cut it at its first hole if that loses nothing.

    Without `cuts` nothing is changed: RocksDB accepts a manifest that a kill has cut short. `was_opened` is False if
    the store may never have been opened completely: then the manifest may be incomplete, and there is nothing to lose.
    Return the file that keeps the original manifest, or None if nothing was changed. Raise `StoreUnavailable` if the
    manifest is damaged.
    """
    try:
        manifest = find_manifest(directory)
        end, changes = _read(manifest)
    except _UNREADABLE:
        return None  # there is none yet, or RocksDB reports the problem
    if end == manifest.stat().st_size:
        return None
    needed = _find_needed_log(changes)
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
    """Return whether the manifest that CURRENT names can be read to its end. A missing manifest counts as whole."""
    try:
        manifest = find_manifest(directory)
        return _read(manifest)[0] == manifest.stat().st_size
    except _UNREADABLE:
        return True


def restore_previous_manifest(directory: Path) -> Path | None:
    """Name the previous manifest if the one that CURRENT names is missing, provided that this loses nothing.

    At every opening RocksDB writes a new manifest, names it, syncs the directory of both names, and only then deletes
    the previous manifest and its logs. A power cut before that sync may keep the naming and lose the manifest. If the
    log that the previous manifest refers to is missing, the new one had been in use, and nothing is changed. Return the
    file that keeps the original CURRENT, or None if nothing was changed.
    """
    current = directory / "CURRENT"
    try:
        named = find_manifest(directory)
        if named.exists():
            return None
        lists = {_parse_number(each): each for each in directory.glob("MANIFEST-*") if not each.suffix}
        before = lists[max(number for number in lists if number < _parse_number(named))]
        end, changes = _read(before)
    except _UNREADABLE:
        return None
    needed = _find_needed_log(changes)
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


def find_oldest_needed_log(directory: Path) -> int | None:
    """Return the number of the oldest log that the manifest refers to; None if it does not say.

    RocksDB reads no older log, so the content and existence of older logs do not matter. RocksDB deletes them in an
    order that a power cut may change.
    """
    try:
        _, changes = _read(find_manifest(directory))
    except _UNREADABLE:
        return None
    return _find_needed_log(changes)


def find_manifest(directory: Path) -> Path:
    """Return the manifest that CURRENT names."""
    return directory / (directory / "CURRENT").read_text().strip()


def _has_log(manifest: Path, needed: int) -> bool:
    """Return whether the needed log exists, or the log that was begun together with this manifest.

    An opening replays all older logs, and the manifest says only that.
    """
    begun = _parse_number(manifest) - 1
    return any((manifest.parent / f"{number:06}.log").exists() for number in (needed, begun) if number >= needed)


def _parse_number(manifest: Path) -> int:
    return int(manifest.name.removeprefix("MANIFEST-"))


def restore_original(saved: Path) -> None:
    """Replace a repaired file by the original that was kept."""
    saved.replace(saved.with_name(saved.name.removesuffix(_SAVED)))


def _read(manifest: Path) -> tuple[int, list[bytes]]:
    """Return the offset of the end of the last whole change, and all whole changes."""
    changes: list[bytes] = []
    parts, end = b"", 0
    raw = manifest.read_bytes()
    for block in range(0, len(raw), BLOCK):
        stop = min(block + BLOCK, len(raw))
        chain = find_chain_end(raw, block, stop)
        for offset, after, type in list_records(raw, block, chain):
            if not has_valid_checksum(raw, offset, after):
                return end, changes
            data = raw[offset + HEADER_SIZE : after]
            parts = data if type in (WHOLE, FIRST) else parts + data
            if type in (WHOLE, LAST):
                changes.append(parts)
                end = after
        # A full block may end in padding that is shorter than a header. Anywhere else such remaining bytes are a torn
        # record.
        if stop - chain >= HEADER_SIZE or (chain < stop and stop - block < BLOCK):
            return end, changes
    return (len(raw) if not parts or end > len(raw) - HEADER_SIZE else end), changes


def _find_needed_log(changes: list[bytes]) -> int | None:
    """Return the oldest log that the manifest refers to; None if it does not say, or does not name every family."""
    names: dict[int, bytes] = {}
    # The log number of each family, and under `_OLDEST_KEPT` the oldest log that is kept, whatever the families say
    # that had nothing to flush.
    logs: dict[int, int] = {}
    group: list[list[tuple[int, list[int | bytes]]]] = []
    for change in changes:
        fields = _parse_change(change)
        if fields is None:
            return None
        group.append(fields)
        # RocksDB applies a group of changes only if the group is complete.
        if not any(tag == _IN_GROUP and values[0] for tag, values in fields):
            for each in group:
                _apply(each, names, logs)
            group = []
    wanted = {name.encode() for name in keys.FAMILY_NAMES}
    if not wanted <= set(names.values()):
        return None
    # A family that is older than the first log has the log number 0.
    oldest = min((logs[family] for family in names if logs.get(family)), default=None)
    return None if oldest is None else max(oldest, logs.get(_OLDEST_KEPT, 0))


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
            logs[_OLDEST_KEPT] = int(values[0])


def _parse_change(change: bytes) -> list[tuple[int, list[int | bytes]]] | None:
    """Return the fields of a change; None if it is not understood."""
    try:
        return list(_parse_fields(change))
    except (IndexError, ValueError):
        return None


def _parse_fields(change: bytes) -> Iterator[tuple[int, list[int | bytes]]]:
    offset = 0
    while offset < len(change):
        tag, offset = _parse_varint(change, offset)
        shape = _FIELDS.get(tag) or ("s" if tag & _IGNORABLE else None)
        if shape is None and tag != _FAMILY_DROP:
            raise ValueError(f"unknown field {tag}")
        values: list[int | bytes] = []
        for kind in shape or "":
            value, offset = _parse_varint(change, offset) if kind == "n" else _parse_string(change, offset)
            values.append(value)
        while tag == _NEW_FILE:
            more, offset = _parse_varint(change, offset)
            if more == _LAST_OF_FILE:
                break
            _, offset = _parse_string(change, offset)
        yield tag, values


def _parse_varint(raw: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while raw[offset] >= 0x80:
        value |= (raw[offset] & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
    return value | raw[offset] << shift, offset + 1


def _parse_string(raw: bytes, offset: int) -> tuple[bytes, int]:
    size, offset = _parse_varint(raw, offset)
    if offset + size > len(raw):
        raise ValueError("cut short")
    return raw[offset : offset + size], offset + size
