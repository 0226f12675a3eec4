"""Everything about a directory that writing to it would change."""

from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    inode: int
    mode: int
    mtime_ns: int
    ctime_ns: int
    contents: bytes | None


def listing_of(path: Path) -> dict[str, Entry]:
    """Return the directory itself and every file and folder in it, by relative path."""
    return {str(each.relative_to(path)): _entry_of(each) for each in (path, *path.rglob("*"))}


def _entry_of(path: Path) -> Entry:
    status = path.stat()
    contents = path.read_bytes() if path.is_file() else None
    return Entry(status.st_ino, status.st_mode, status.st_mtime_ns, status.st_ctime_ns, contents)
