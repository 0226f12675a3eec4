"""The servers under test: `holdfast serve`, and the bare echo it is measured beside."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

_PATIENCE_S = 30


class Started(NamedTuple):
    port: int
    pid: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def holdfast_server(directory: Path, *flags: str) -> Iterator[int]:
    """The port of a separate server."""
    with holdfast_process(directory, *flags) as started:
        yield started.port


@contextlib.contextmanager
def holdfast_process(directory: Path, *flags: str) -> Iterator[Started]:
    port = free_port()
    command = [sys.executable, "-m", "holdfast", "serve", "--data", str(directory), "--port", str(port), *flags]
    with _started(command, port) as pid:
        yield Started(port, pid)


@contextlib.contextmanager
def echo_process() -> Iterator[Started]:
    """uvicorn with the same event loop and parser, and an application that answers the body it was sent."""
    port = free_port()
    options = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "error"]
    command = [sys.executable, "-m", "uvicorn", "bench.http.servers:echo", "--port", str(port), *options]
    with _started([*command, "--lifespan", "off"], port) as pid:
        yield Started(port, pid)


async def echo(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    body = (await receive())["body"]
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def _started(command: list[str], port: int) -> Iterator[int]:
    """The id of the process, once it answers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                said = process.communicate()[1].decode()
                raise RuntimeError(f"{' '.join(command)} did not start: {said}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.communicate(timeout=_PATIENCE_S)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
