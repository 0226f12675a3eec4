"""Holdfast through its public blocking API: embedded, and over each of its protocols."""

import os
import sys
from pathlib import Path
from typing import Any

import holdfast
from bench.http.servers import free_port
from bench.peers.contract import LEASE_S, Claimed, Client, Server
from bench.peers.processes import ServerProcess


class HoldfastServer(Server):
    """`holdfast serve` with the defaults, which sync before every answer."""

    def __init__(self, directory: Path, scheme: str, port_option: str) -> None:
        """`port_option` opens the port of the protocol that `scheme` names; HTTP's is always open."""
        ports = {"--port": free_port()}
        ports.setdefault(port_option, free_port())
        port = ports[port_option]
        self.address = f"{scheme}://127.0.0.1:{port}"
        command = [sys.executable, "-m", "holdfast", "serve", "--data", str(directory / "data")]
        options = [word for option, number in ports.items() for word in (option, str(number))]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self._process = ServerProcess([*command, *options], directory, port, env=environment)

    def pids(self) -> list[int]:
        return [self._process.pid]

    def close(self) -> None:
        self._process.stop()


class HoldfastClient(Client):
    def __init__(self, address: str, *, notifies: bool) -> None:
        self._holdfast = holdfast.open(address)
        self._queues: dict[str, holdfast.Queue] = {}

    def _queue(self, name: str) -> holdfast.Queue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = self._holdfast.queue(name)
        return queue

    def enqueue(self, queue: str, payloads: list[bytes]) -> None:
        self._queue(queue).enqueue(payloads)

    def claim(self, queue: str, limit: int, wait_s: float) -> list[Claimed]:
        return [(each, each.payload) for each in self._queue(queue).claim(limit, wait=wait_s, lease=LEASE_S)]

    def ack(self, queue: str, handles: list[Any]) -> None:
        _check(self._queue(queue).ack(handles))

    def close(self) -> None:
        self._holdfast.close()


class ExchangeClient(HoldfastClient):
    """Acks a batch and claims the next one in a single call."""

    def exchange(self, queue: str, handles: list[Any], limit: int, wait_s: float) -> list[Claimed]:
        results, messages = self._queue(queue).exchange(handles, limit, wait=wait_s, lease=LEASE_S)
        _check(results)
        return [(each, each.payload) for each in messages]


def _check(results: list[Any]) -> None:
    if refused := [result for result in results if not result.ok]:
        raise RuntimeError(f"an ack was refused: {refused[0].error}")
