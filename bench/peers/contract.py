"""The two halves of a measured system: a server that the benchmark starts, and a client in a process of its own."""

import importlib
import shutil
import time
from pathlib import Path
from typing import Any, cast

PAYLOAD_BYTES = 256
# The first digits of a payload: when it was made, in nanoseconds of the clock that all processes of a machine share.
_STAMP_BYTES = 20
_FILLER = (b"abcdefghijklmnopqrstuvwxyz0123456789" * 8)[: PAYLOAD_BYTES - _STAMP_BYTES]
_FILL_BATCH = 1_000

LEASE_S = 60

# What an ack needs, and the payload.
Claimed = tuple[Any, bytes]


def make_payload() -> bytes:
    return b"%020d" % time.monotonic_ns() + _FILLER


def age_ms(payload: bytes) -> float:
    """Return the milliseconds since the payload was made, in whichever process."""
    return (time.monotonic_ns() - int(payload[:_STAMP_BYTES])) / 1e6


class Client:
    """One connection to a system. Each call returns once the system has confirmed it as durably as it can.

    `notifies`: a waiting consumer is what is measured. PostgreSQL notifies only then, for it makes commits slower.
    A system that is embedded has one client for all threads of its process.
    """

    def __init__(self, address: str, *, notifies: bool) -> None:
        raise NotImplementedError

    def enqueue(self, queue: str, payloads: list[bytes]) -> None:
        raise NotImplementedError

    def claim(self, queue: str, limit: int, wait_s: float) -> list[Claimed]:
        """Claim up to `limit` messages, waiting up to about `wait_s` for the first."""
        raise NotImplementedError

    def ack(self, queue: str, handles: list[Any]) -> None:
        raise NotImplementedError

    def exchange(self, queue: str, handles: list[Any], limit: int, wait_s: float) -> list[Claimed]:
        """Ack earlier messages, then claim others: two calls, unless the system has one for both."""
        if handles:
            self.ack(queue, handles)
        return self.claim(queue, limit, wait_s)

    def close(self) -> None:
        raise NotImplementedError


class Server:
    """A running system, seen by the benchmark. `address` is passed to the clients."""

    address: str

    def pids(self) -> list[int]:
        """Return the processes whose work, with that of their children, is the server's; none if it is embedded."""
        return []

    def reset(self, queues: list[str], *, notifies: bool) -> None:
        """Forget all messages and make these queues, whose names were never used before."""

    def fill(self, client: Client, queue: str, messages: int) -> None:
        """Add messages that nobody measures."""
        for start in range(0, messages, _FILL_BATCH):
            client.enqueue(queue, [make_payload() for _ in range(min(_FILL_BATCH, messages - start))])

    def close(self) -> None:
        """Stop what was started, by its process id."""


class EmbeddedFiles(Server):
    """A directory in place of a server: each reset begins another one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._resets = 0
        self.address = str(directory / "0")

    def reset(self, queues: list[str], *, notifies: bool) -> None:
        shutil.rmtree(self.address, ignore_errors=True)
        self._resets += 1
        self.address = str(self._directory / str(self._resets))


def load_client(path: str) -> type[Client]:
    """Import a client class, given as `module:Class`: a client process imports no other system's library."""
    module, _, name = path.partition(":")
    return cast("type[Client]", getattr(importlib.import_module(module), name))
