"""Server processes, the directory that their data lies in, and the processor time of a process with its children."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_START_S = 60.0
_STOP_S = 30.0
_PROC = Path("/proc")
_MOUNTS = _PROC / "self/mounts"
_IN_MEMORY = {"tmpfs", "ramfs"}


@contextmanager
def disk_directory() -> Iterator[Path]:
    """A temporary directory on a real disk, for a sync to memory costs nothing; removed at the end."""
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    found = next((place for place in places if place.is_dir() and not is_in_memory(place)), None)
    if found is None:
        raise RuntimeError(f"{', '.join(map(str, places))} are all in memory: set TMPDIR to a directory on a disk")
    path = Path(tempfile.mkdtemp(prefix="holdfast-peers-", dir=found))
    path.chmod(0o755)  # PostgreSQL may run as another user
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def is_in_memory(path: Path) -> bool:
    """Return whether the file system of a path is known to lie in memory."""
    if not _MOUNTS.exists():
        return False
    real = path.resolve()
    mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    # The longest mount point is the nearest, and of equal ones the last is on top.
    nearest = max((len(point), number) for number, (point, _) in enumerate(mounts) if real.is_relative_to(point))
    return mounts[nearest[1]][1] in _IN_MEMORY


class ServerProcess:
    """A server that was started here, and is stopped by its own process id."""

    def __init__(
        self, command: list[str], directory: Path, port: int, *, stop: signal.Signals = signal.SIGTERM, **how: Any
    ) -> None:
        """Return once the server listens. `how` is passed to Popen."""
        self._stop = stop
        self._log = directory / "log"
        with self._log.open("ab") as log:
            # In a session of its own: Ctrl-C reaches the benchmark alone, which then stops the servers.
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **how,
            )
        self.pid = self._process.pid
        try:
            self._wait_for(port)
        except BaseException:
            self.stop()
            raise

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._process.args!r} did not start: {self._log.read_text()[-500:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.send_signal(self._stop)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Raise KeyboardInterrupt after the block: one within would lose the process that the block starts."""
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _frame: caught.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if caught:
            raise KeyboardInterrupt


def unprivileged_user() -> dict[str, Any]:
    """Return Popen's arguments for PostgreSQL, which refuses to run as root; none if this is not root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of these processes, their children and the children that have ended.

    From Linux's /proc; without it, not a number.
    """
    if not _MOUNTS.exists():
        return float("nan")
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            # The name, in parentheses, may have spaces. Fields 4, and 14 to 17 of proc_pid_stat(5) follow it.
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11:15]))
    wanted = set(pids)
    family = [pid for pid in parents if _descends_from(pid, wanted, parents)]
    return sum(used[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def _descends_from(pid: int, wanted: set[int], parents: dict[int, int]) -> bool:
    while pid not in wanted:
        if pid not in parents:
            return False
        pid = parents[pid]
    return True
