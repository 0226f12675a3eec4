"""A server in a separate process, and callers that can stop half-way."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

START_S = 30.0
END_S = 30.0


def urls_in(line: str) -> dict[str, str]:
    """The addresses in the line that a server prints once it listens: `url`, and those of its other doors."""
    said = json.loads(line)
    assert said["event"] == "listening"
    return {name: said[name] for name in ("url", "capnp_url", "framed_url") if name in said}


class Served:
    """`holdfast serve` with these arguments, on a free port of the loopback unless they say otherwise.

    `program` is the module that takes the arguments; by default, the command line."""

    def __init__(
        self,
        *arguments: str | Path,
        environment: dict[str, str] | None = None,
        program: tuple[str, ...] = ("holdfast",),
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        port = () if "--port" in arguments else ("--port", "0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *program, "serve", *port, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**kept, **(environment or {})},
            text=True,
        )
        self.line = ""
        self.log = ""
        self._callers: list[Caller] = []

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        self.line = self.process.stdout.readline() if readable else ""
        if not self.line:
            self.process.kill()
            raise AssertionError(f"the server did not start: {self.process.communicate()[1]}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for caller in self._callers:
            caller.close()
        if self.process.poll() is None:
            self.process.kill()
        if not self.log:
            self.process.communicate()

    @property
    def url(self) -> str:
        """The address it listens on; with a Cap'n Proto door, that door's."""
        return list(urls_in(self.line).values())[-1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def connect(self) -> "Caller":
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port))
        self._callers.append(caller)
        return caller

    async def call(self, path: str, document: Any) -> "Answer":
        caller = await self.connect()
        caller.send(path, document)
        answer = await caller.answer()
        caller.close()
        return answer

    async def get(self, path: str) -> "Answer":
        caller = await self.connect()
        caller.writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = await caller.answer()
        caller.close()
        return answer

    def signal(self, which: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(which)

    def end(self) -> int:
        """Its exit code, once it has one."""
        _, self.log = self.process.communicate(timeout=END_S)
        return self.process.returncode

    async def until_refused(self) -> "Answer":
        """The first refusal of a new call, once the drain has begun."""
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            answer = await self.call("/v1/queue/enqueue", {"messages": []})
            if answer.status != 200:
                return answer
        raise AssertionError("new calls are still taken")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """One HTTP/1.1 connection, written and read by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send_head(self, path: str, length: int) -> None:
        self.writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())

    def send(self, path: str, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_head(path, len(body))
        self.writer.write(body)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def answer(self) -> Answer:
        status, headers = await self.head()
        return Answer(status, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def rest(self) -> bytes:
        """Whatever comes until the server closes the connection."""
        return await self.reader.read()

    def close(self) -> None:
        self.writer.close()
