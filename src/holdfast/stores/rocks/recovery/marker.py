"""The file beside RocksDB's own that says: this is a store of ours, of which format, who has it open, since which boot.

Whether the machine was started anew since the store was last written to tells a power cut from a kill: a kill leaves
every byte that was written, so whatever is missing then, the disk has lost.
"""

import ctypes
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.file_sync import sync_directory, sync_file

# The layout of the directory, keys and values. A store of a higher number was written by a newer Holdfast.
#
#     1   no log but RocksDB's own; becomes 2 when it is opened
#     2   one database with a commit log, in the store's own directory
#     3   shards, each a directory with a database and a log; frames of kind LINKED. Only stores with shards have it.
#     4   as 2, and frames with parts for many plain messages (plain_messages.py), and blocks of the journal that tell
#         many alike events by their columns (journal_blocks.py)
#     5   as 3, with the same frames and blocks. Only stores with shards have it.
#
# A store of format 2 becomes 4 when it is opened, and one of format 3 becomes 5: both read what is in the older one.
#
# To change the format: raise the number, write down here what it changed, and bring stores of the number before to the
# new one in `Database`, before the marker says so.
FORMAT = 5
# The first format with a commit log of our own.
WITH_LOG = 2
_WITHOUT_SHARDS = 4
# The formats of stores with shards, whose markers have a role.
_WITH_SHARDS = (3, FORMAT)
MARKER = "HOLDFAST"
_FRESH_MARKER = "HOLDFAST.new"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_SESSION = b"kern.bootsessionuuid"


class ClosedState(NamedTuple):
    """The state of RocksDB when the store was closed: a list of files that is shorter later has lost some of them."""

    # The position of the log: the number of the last frame, and the generation of its segment.
    number: int
    generation: int
    manifest: str
    manifest_bytes: int


class Role(NamedTuple):
    """The part that a directory plays in a store with shards. The default is a store without shards."""

    # In the store's own directory: the number of shards, the folder that holds them, and whether all of them have been
    # made. A shard that is missing after that is lost.
    shards: int = 1
    folder: str | None = None
    is_made: bool = False
    # In the directory of a shard: its number.
    shard: int | None = None

    @property
    def format(self) -> int:
        return _WITHOUT_SHARDS if self == WHOLE_STORE else FORMAT


WHOLE_STORE = Role()


class Marker(NamedTuple):
    pid: int | None
    """Who has it open; None: it was closed in order."""
    boot: str | None
    format: int = _WITHOUT_SHARDS
    # None while the store is open, and before it was first closed in order. The directory of a store with shards has
    # none: each shard has its own.
    rest: ClosedState | None = None
    role: Role = WHOLE_STORE

    @property
    def was_never_opened(self) -> bool:
        """Return whether no opening of the store has come to its end yet."""
        return self.pid is None and self.rest is None

    @property
    def is_of_this_boot(self) -> bool:
        """Known to be: where the system does not say, a power cut is possible."""
        return self.boot is not None and self.boot == boot_id()


@cache
def boot_id() -> str | None:
    """Return a text that is another each time the machine is started; None where the system has none.

    Linux has a file for it, macOS a system value. Without either, every opening checks the whole log, as after a power
    cut, and messages that were answered are safe all the same.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return _system_value(_BOOT_SESSION)


def _system_value(name: bytes, library: Any = None) -> str | None:
    """Return a value of macOS's `sysctlbyname`; None where there is no such call, or no such value."""
    size = ctypes.c_size_t(256)
    value = ctypes.create_string_buffer(size.value)
    try:
        found = (library or ctypes.CDLL(None)).sysctlbyname(name, value, ctypes.byref(size), None, 0) == 0
    except (AttributeError, OSError):
        return None
    return value.value.decode("ascii", "replace").strip() or None if found else None


def check_directory(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"{path} is a file: give a directory for the store", field="url")
    marker = path / MARKER
    if marker.exists():
        try:
            read = json.loads(marker.read_text())
            format = int(read["format"])
            if format in _WITH_SHARDS:
                _parse_role(read["role"])
        except (ValueError, KeyError, TypeError):
            raise StoreUnavailable(f"{marker} is damaged: restore the store from a backup", path=str(path)) from None
        if format > FORMAT:
            raise StoreUnavailable(
                f"{path} is a store of format {format}, this version reads up to {FORMAT}: upgrade Holdfast",
                path=str(path),
                format=format,
            )
    elif (
        path.is_dir()
        and any(file.name != _FRESH_MARKER for file in path.iterdir())
        # Once more: another opening may have made the store since. It writes the marker before any other file.
        and not marker.exists()
    ):
        raise InvalidArgument(
            f"{path} is not a store and not empty: give a store's directory, or a new one", field="url"
        )


def read_marker(path: Path) -> Marker:
    try:
        read = json.loads((path / MARKER).read_text())
        pid, boot, format, rest = read.get("pid"), read.get("boot"), int(read["format"]), read.get("rest")
        rest = None if rest is None else ClosedState(*rest)
        role = _parse_role(read["role"]) if "role" in read else WHOLE_STORE
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return Marker(None, None)
    return Marker(pid if isinstance(pid, int) else None, boot if isinstance(boot, str) else None, format, rest, role)


def _parse_role(read: dict[str, Any]) -> Role:
    """Raise `ValueError` or `TypeError` if it is damaged: a store with shards must not be taken for one without."""
    role = Role(**read)
    is_store = isinstance(role.folder, str) and role.shard is None
    is_shard = role.folder is None and isinstance(role.shard, int)
    if not (is_store or is_shard) or role.shards < 1:
        raise ValueError("the marker names neither a store with shards nor a shard")
    return role


def write_marker(
    path: Path, pid: int | None, role: Role = WHOLE_STORE, *, format: int | None = None, rest: ClosedState | None = None
) -> None:
    """Write the marker by a rename, so that a crash leaves the old marker or the new one."""
    facts: dict[str, Any] = {"format": format or role.format, "pid": pid, "boot": boot_id(), "rest": rest}
    if role != WHOLE_STORE:
        facts["role"] = role._asdict()
    fresh = path / _FRESH_MARKER
    with fresh.open("w") as file:
        json.dump(facts, file)
        file.flush()
        sync_file(file.fileno())
    fresh.replace(path / MARKER)
    sync_directory(path)
