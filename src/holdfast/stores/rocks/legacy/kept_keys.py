"""The file with the keys and values of a legacy database that are not messages."""

import base64
from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.stores.disk.file_sync import sync_directory, sync_file
from holdfast.stores.rocks.legacy.entries import Oddity, OddityKind

UNREADABLE = "legacy-unreadable.jsonl"
# The kinds of keys whose contents are kept. The other kinds contain nothing that the messages do not.
KEPT_KINDS = frozenset({OddityKind.UNREADABLE, OddityKind.UNKNOWN, OddityKind.TWIN})


def keep_keys(directory: Path, oddities: Iterable[Oddity]) -> Path | None:
    """Write keys and values to a file in the directory, one line of JSON each, and return its path.

    Lines that an earlier call has written stay. Return None if there is nothing to keep.
    """
    target, fresh = directory / UNREADABLE, directory / f"{UNREADABLE}.new"
    earlier = target.read_bytes().splitlines() if target.exists() else []
    known = set(earlier)
    count = len(earlier)
    with fresh.open("wb") as file:
        for line in earlier:
            file.write(line + b"\n")
        for each in oddities:
            if each.kind in KEPT_KINDS and (line := msgspec.json.encode(_line_of(each))) not in known:
                file.write(line + b"\n")
                count += 1
        file.flush()
        sync_file(file.fileno())
    if not count:
        fresh.unlink()
        return None
    fresh.replace(target)
    sync_directory(directory)
    return target


def _line_of(oddity: Oddity) -> dict[str, str]:
    return {
        "kind": oddity.kind.value,
        "why": oddity.why,
        "key_base64": base64.b64encode(oddity.key).decode(),
        "value_base64": base64.b64encode(oddity.value).decode(),
    }
