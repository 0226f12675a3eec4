"""The shim between a process and its files (shim.c): its build, and its commands."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from enum import IntEnum
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.c")
_COMPILERS = ("cc", "gcc", "clang")


class Fault(IntEnum):
    """The numbers are shim.c's."""

    KILL_BEFORE = 1
    KILL_WITHIN = 2
    FAIL_SYNC = 3
    FILL_DISK = 4


def build_shim() -> Path:
    """The shared library, compiled if this source never was by this user."""
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"the faults of a disk are made by LD_PRELOAD, which {sys.platform} has not: run on Linux")
    source = _SOURCE.read_bytes()
    library = _cache_directory() / f"shim-{os.uname().machine}-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not library.exists():
        fresh = library.with_name(f"{library.name}.{os.getpid()}")
        command = [_compiler(), "-shared", "-fPIC", "-O2", "-o", str(fresh), str(_SOURCE), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        fresh.replace(library)  # whole or not there, whoever else builds it at this moment
    return library


def _compiler() -> str:
    for name in (os.environ.get("CC"), *_COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise RuntimeError(
        "no C compiler was found (cc, gcc, clang, or the one that CC names): install one, "
        "as by `apt install gcc libc6-dev`; the faults of a disk are made by a small library in C"
    )


def _cache_directory() -> Path:
    """One's own: what lies here is loaded into one's programs."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(home) / "holdfast"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if directory.stat().st_uid == os.getuid() and os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="holdfast-"))


@cache
def _shim() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if not hasattr(library, "holdfast_watch"):
        raise RuntimeError("this process runs without the shim: start it with LD_PRELOAD")
    for name in ("holdfast_calls", "holdfast_writes", "holdfast_syncs"):
        getattr(library, name).restype = ctypes.c_long
    library.holdfast_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long]
    library.holdfast_mark.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library


def watch(directory: Path) -> None:
    """From now on every change below the directory is counted, from 1."""
    _shim().holdfast_watch(os.fsencode(directory.resolve()))


def arm(fault: Fault, first: int, last: int | None = None) -> None:
    """A kill counts every call, a failing sync the syncs, a full disk the writes."""
    _shim().holdfast_arm(fault, first, first if last is None else last)


def disarm() -> None:
    _shim().holdfast_disarm()


def trace_to(fd: int) -> None:
    _shim().holdfast_trace(fd)


def mark(said: bytes) -> None:
    """Into the trace, at this moment."""
    _shim().holdfast_mark(said, len(said))


class Counted(tuple[int, int, int]):
    """Calls, and the syncs and writes among them."""

    @property
    def calls(self) -> int:
        return self[0]

    @property
    def syncs(self) -> int:
        return self[1]

    @property
    def writes(self) -> int:
        return self[2]


def counted() -> Counted:
    shim = _shim()
    return Counted((shim.holdfast_calls(), shim.holdfast_syncs(), shim.holdfast_writes()))
