"""A Redis server of the tests' own: on a free port of the loopback, in a temporary directory, keeping nothing."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import redis

from tests.services import find_program

_START_S = 30.0


class RedisServer:
    def __init__(self, *options: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
        self._options = options
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        program = find_program("redis-server")
        self.process = subprocess.Popen(
            [
                *(program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.path)),
                *("--save", "", "--appendonly", "no", "--logfile", str(self.path / "log"), *self._options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                with redis.Redis(port=self.port, socket_timeout=1) as client:
                    client.ping()
                return
            except redis.RedisError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Redis did not start: {(self.path / 'log').read_text()}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """By its own id, as a crash."""
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def flush(self) -> None:
        with redis.Redis(port=self.port, socket_timeout=5) as client:
            client.flushall()

    def keys(self) -> list[bytes]:
        with redis.Redis(port=self.port, socket_timeout=5) as client:
            found: list[bytes] = client.keys("*")
            return sorted(found)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.path, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
