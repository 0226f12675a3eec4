"""The marker, a file that identifies a store: its format, the process that has it open, and the boot it was opened in.

The boot tells a power cut from a kill. A kill loses no byte that was written. So if the machine has not been restarted
since, any missing data means that the disk has lost it.
"""

import ctypes
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.file_sync import sync_directory, sync_file

# The format of the directory, its keys and values. A higher number means that a newer Holdfast wrote the store.
#
#   1   only RocksDB's own log; becomes 2 when it is opened
#   2   one database with a commit log, in the store's own directory
#   3   shards, each a directory with a database and a log; frames of kind LINKED. Only stores with shards have it.
#   4   as 2, with frame parts for many plain messages (`plain_messages.py`) and journal blocks that describe many
#       similar events by columns (`event_blocks.py`)
#   5   as 3, with the frame parts and journal blocks of 4. Only stores with shards have it.
#   6   as 5, with transfers between shards (`transfers.py`). Only stores with shards have it.
#   7   as 4 or 6, with a database of the legacy layout in the folder `legacy`, whose messages are being moved into the
#       store (`legacy/online`). Once they are, the store becomes 4 or 6 again.
#
# Opening a store of format 2 makes it 4, and one of format 3 or 5 makes it 6. Both versions read everything of the
# older one.
#
# How to change this format: raise the number, describe the change here, and let `Database` convert a store of the
# previous format before it writes the marker.
FORMAT = 7
# The first format with Holdfast's own commit log.
WITH_LOG = 2
_WITHOUT_SHARDS = 4
_WITH_SHARDS = 6
# The formats whose markers have a role: stores with shards, and those with a legacy database.
_WITH_ROLE = (3, 5, _WITH_SHARDS, FORMAT)
MARKER = "HOLDFAST"
_FRESH_MARKER = "HOLDFAST.new"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_SESSION = b"kern.bootsessionuuid"


class ClosedState(NamedTuple):
    """The state of RocksDB when the store was closed.

    A manifest that is shorter at the next opening has lost files.
    """

    # The log position: the number of the last frame, and the generation of its segment.
    number: int
    generation: int
    manifest: str
    manifest_bytes: int


class Role(NamedTuple):
    """The role of a directory in a store with shards. The default is a store without shards."""

    # In the store's own directory: the number of shards, the folder that contains them, and whether all of them have
    # been made. If a shard is missing after that, it was lost.
    shards: int = 1
    folder: str | None = None
    is_made: bool = False
    # In the directory of a shard: its number.
    shard: int | None = None
    # In the store's own directory: the folder `legacy` has a database of the legacy layout that is being moved.
    has_legacy: bool = False

    @property
    def format(self) -> int:
        """Return the format of a directory with this role."""
        if self.has_legacy:
            return FORMAT
        return _WITHOUT_SHARDS if self == WHOLE_STORE else _WITH_SHARDS


WHOLE_STORE = Role()


class Marker(NamedTuple):
    """The content of a marker."""

    # The process that has the store open; None if it was closed properly.
    pid: int | None
    boot: str | None
    format: int = _WITHOUT_SHARDS
    # None while the store is open, and before it was first closed properly. The directory of a store with shards has
    # none: each shard has its own. The marker's JSON calls it `rest`.
    closed_state: ClosedState | None = None
    role: Role = WHOLE_STORE

    @property
    def was_never_opened(self) -> bool:
        """Return whether the store was never opened completely."""
        return self.pid is None and self.closed_state is None

    @property
    def is_of_this_boot(self) -> bool:
        """Return whether the store is known to have been opened since the last boot. If the system does not say, a
        power cut is possible."""
        return self.boot is not None and self.boot == read_boot_id()


@cache
def read_boot_id() -> str | None:
    """Return a text that changes with every boot; None if the system has none.

    Linux has a file for it, macOS a system value. Without either, every opening checks the whole log, as after a power
    cut. Acknowledged messages are safe all the same.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return _read_system_value(_BOOT_SESSION)


def _read_system_value(name: bytes, library: Any = None) -> str | None:
    """Return a value of macOS's `sysctlbyname`; None if there is no such function or value."""
    size = ctypes.c_size_t(256)
    value = ctypes.create_string_buffer(size.value)
    try:
        found = (library or ctypes.CDLL(None)).sysctlbyname(name, value, ctypes.byref(size), None, 0) == 0
    except (AttributeError, OSError):
        return None
    return value.value.decode("ascii", "replace").strip() or None if found else None


def check_directory(path: Path) -> None:
    """Check that a directory is a store, is empty or does not exist.

    Raise `InvalidArgument` if it is neither, and `StoreUnavailable` if the marker is damaged or of a newer format.
    """
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"{path} is a file: give a directory for the store", field="url")
    marker = path / MARKER
    if marker.exists():
        try:
            read = json.loads(marker.read_text())
            format = int(read["format"])
            if format in _WITH_ROLE:
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
        # Check again, because another process may have created the store since. It writes the marker before any other
        # file.
        and not marker.exists()
    ):
        raise InvalidArgument(
            f"{path} is not a store and not empty: give a store's directory, or a new one", field="url"
        )


def read_marker(path: Path) -> Marker:
    """Return the content of the marker. A missing or unreadable marker gives an empty one."""
    try:
        read = json.loads((path / MARKER).read_text())
        pid, boot, format, closed_state = read.get("pid"), read.get("boot"), int(read["format"]), read.get("rest")
        closed_state = None if closed_state is None else ClosedState(*closed_state)
        role = _parse_role(read["role"]) if "role" in read else WHOLE_STORE
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return Marker(None, None)
    return Marker(
        pid if isinstance(pid, int) else None, boot if isinstance(boot, str) else None, format, closed_state, role
    )


def _parse_role(read: dict[str, Any]) -> Role:
    """Return a role. Raise `ValueError` or `TypeError` if it is damaged: a store with shards must not be mistaken for
    one without."""
    role = Role(**read)
    is_store = isinstance(role.folder, str) and role.shard is None
    is_shard = role.folder is None and isinstance(role.shard, int)
    is_legacy = role.has_legacy and role.shard is None
    if not (is_store or is_shard or is_legacy) or role.shards < 1:
        raise ValueError("the marker describes neither a store with shards nor a shard")
    return role


def write_marker(
    path: Path,
    pid: int | None,
    role: Role = WHOLE_STORE,
    *,
    format: int | None = None,
    closed_state: ClosedState | None = None,
) -> None:
    """Write the marker by a rename, so that a crash leaves the old marker or the new one."""
    facts: dict[str, Any] = {"format": format or role.format, "pid": pid, "boot": read_boot_id(), "rest": closed_state}
    if role != WHOLE_STORE:
        facts["role"] = role._asdict()
        if not role.has_legacy:
            del facts["role"]["has_legacy"]  # versions before format 7 refuse a role with this field
    fresh = path / _FRESH_MARKER
    with fresh.open("w") as file:
        json.dump(facts, file)
        file.flush()
        sync_file(file.fileno())
    fresh.replace(path / MARKER)
    sync_directory(path)
