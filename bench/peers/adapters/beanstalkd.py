"""beanstalkd with its log on, which it syncs before every answer (-f0)."""

import shutil
import socket
from pathlib import Path
from typing import Any

from bench.http.servers import free_port
from bench.peers.contract import LEASE_S, Claimed, Client, Server
from bench.peers.processes import ServerProcess
from tests.services import find_program


class BeanstalkdServer(Server):
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self.address = str(self._port)
        self._process = self._start()

    def _start(self) -> ServerProcess:
        log = self._directory / "binlog"
        log.mkdir()
        command = [find_program("beanstalkd"), "-l", "127.0.0.1", "-p", str(self._port), "-b", str(log), "-f0"]
        return ServerProcess(command, self._directory, self._port)

    def pids(self) -> list[int]:
        return [self._process.pid]

    def reset(self, queues: list[str], *, notifies: bool) -> None:
        """Start a new server, because deleting the remaining messages would cost a sync for each."""
        self._process.stop()
        shutil.rmtree(self._directory / "binlog")
        self._process = self._start()

    def close(self) -> None:
        self._process.stop()


class BeanstalkdClient(Client):
    """Speaks the protocol over a bare socket. It has no batches: commands are sent together instead."""

    def __init__(self, address: str, *, notifies: bool) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(address)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", 1 << 16)
        self._used = self._watched = "default"

    def _answer(self, expected: bytes) -> list[bytes]:
        words = self._file.readline().split()
        if not words or words[0] != expected:
            raise RuntimeError(f"beanstalkd answered {words} and not {expected!r}")
        return words

    def enqueue(self, queue: str, payloads: list[bytes]) -> None:
        commands = [b"put 0 0 %d %d\r\n%s\r\n" % (LEASE_S, len(payload), payload) for payload in payloads]
        changes_queue = self._used != queue
        if changes_queue:
            commands.insert(0, b"use %s\r\n" % queue.encode())
        self._socket.sendall(b"".join(commands))
        if changes_queue:
            self._answer(b"USING")
            self._used = queue
        for _ in payloads:
            self._answer(b"INSERTED")

    def claim(self, queue: str, limit: int, wait_s: float) -> list[Claimed]:
        if self._watched != queue:
            self._socket.sendall(b"watch %s\r\nignore %s\r\n" % (queue.encode(), self._watched.encode()))
            self._answer(b"WATCHING")
            self._answer(b"WATCHING")
            self._watched = queue
        if wait_s <= 0:
            return self._reserve(limit, 0)
        # The others are asked for after the first has come: they would wait behind it. Waits are whole seconds.
        first = self._reserve(1, max(1, round(wait_s)))
        return first + self._reserve(limit - 1, 0) if first and limit > 1 else first

    def _reserve(self, count: int, wait_s: int) -> list[Claimed]:
        self._socket.sendall(b"reserve-with-timeout %d\r\n" % wait_s * count)
        found = []
        for _ in range(count):
            words = self._file.readline().split()
            if words[0] == b"RESERVED":
                found.append((words[1], self._file.read(int(words[2]) + 2)[:-2]))
            elif words[0] != b"TIMED_OUT":
                raise RuntimeError(f"beanstalkd answered {words}")
        return found

    def ack(self, queue: str, handles: list[Any]) -> None:
        self._socket.sendall(b"".join(b"delete %s\r\n" % handle for handle in handles))
        for _ in handles:
            self._answer(b"DELETED")

    def close(self) -> None:
        self._file.close()
        self._socket.close()
