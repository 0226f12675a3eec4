"""Callers that write down all they ask and are answered: the same verbs for the async and the blocking API."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.client.blocking import Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.model.message import NewMessage
from holdfast.model.policy import QueuePolicy
from holdfast.stores.disk.file_sync import sync_data
from tests.machinery.history import lines as h
from tests.machinery.history.scripts import Recorder, Script, Scripts

T = TypeVar("T")

# For a drain: a message comes within two leases and a sweep, however its holder left it.
PATIENCE_MS = 60_000
_INTENTS = (h.Enqueue, h.Claim, h.Settle, h.Redrive, h.Remove, h.Move)


class FileSink:
    """Each line is one write to the system: a kill tears none of those before it, and processes can share the file.

    With `syncs_intents` each call is on disk before it is made, so that not even a power cut makes it unheard of.
    """

    def __init__(self, path: Path, *, syncs_intents: bool = False) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._syncs_intents = syncs_intents
        os.write(self._file, b"\n")  # ends a line that the last kill may have torn

    def __call__(self, line: h.Line) -> None:
        os.write(self._file, h.encode_line(line) + b"\n")
        if self._syncs_intents and isinstance(line, _INTENTS):
            sync_data(self._file)

    def close(self) -> None:
        os.close(self._file)


class AsyncCaller:
    """Calls of the async API, each written down before and after.

    A call that raises an error of Holdfast is written down as refused or unknown, and answers as if it had found
    nothing. `caller` is the tenant of the connection's credential, if it has one.
    """

    def __init__(self, hf: AsyncHoldfast, recorder: Recorder, caller: str | None = None) -> None:
        self.recorder = recorder
        self._scripts = Scripts(hf, recorder, caller)

    async def set_policy(self, queue: str, **changes: Any) -> QueuePolicy:
        return await _run(self._scripts.set_policy(queue, changes))

    async def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[int]:
        return await _run(self._scripts.enqueue(queue, messages))

    async def claim(self, queue: str, limit: int = 1, *, lease_ms: int = 5_000, wait_ms: int = 0) -> list[h.Delivered]:
        return await _run(self._scripts.claim(queue, limit, lease_ms, wait_ms))

    async def settle(self, queue: str, verb: str, receipts: Sequence[str], **options: Any) -> list[bool]:
        """`verb`: ack, nack, final, defer, release or extend; nack and defer take `delay`, extend takes `lease`."""
        return await _run(self._scripts.settle(queue, verb, receipts, options))

    async def redrive(self, queue: str) -> int:
        return await _run(self._scripts.redrive(queue))

    async def remove(self, queue: str, verb: str = "purge", *, id: int | None = None, **options: Any) -> int:
        """`verb`: purge, purge_failed, cancel, delete, or remove with an `id`."""
        return await _run(self._scripts.remove(queue, verb, id, options))

    async def move(self, queue: str, to: str, ids: Sequence[int], *, state: str = "ready") -> int:
        return await _run(self._scripts.move(queue, to, ids, state))

    async def count(self, queue: str) -> h.Counted:
        return await _run(self._scripts.count(queue))

    async def backlog(self, queues: Sequence[str]) -> int:
        """Return the number of messages that are neither acked nor failed. This is not noted in the history."""
        return await _run(self._scripts.backlog(queues))

    async def drain(
        self,
        queues: Sequence[str],
        *,
        lease_ms: int = 10_000,
        wait_ms: int = 20,
        patience_ms: int = PATIENCE_MS,
        pause: Callable[[], Any] | None = None,
    ) -> bool:
        """Claim and ack until nothing is left but dead letters, and say how it ended; whether all of it came.

        `pause` is awaited between rounds: with a clock that is moved by hand, it moves it.
        """
        return await _run(self._scripts.drain(queues, lease_ms, wait_ms, patience_ms, pause))

    async def bring_events(self) -> None:
        """Make the server publish its own events, also those of queues in a move, to all servers."""
        await _run(self._scripts.bring_events())

    async def read_journal(self) -> int:
        """Every event that the journal keeps goes into the history."""
        return await _run(self._scripts.read_journal())


class Caller:
    """A recording caller of the blocking API; see `AsyncCaller`."""

    def __init__(self, hf: Holdfast, recorder: Recorder, caller: str | None = None) -> None:
        self.recorder = recorder
        self._scripts = Scripts(hf, recorder, caller)

    def set_policy(self, queue: str, **changes: Any) -> QueuePolicy:
        return _run_blocking(self._scripts.set_policy(queue, changes))

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[int]:
        return _run_blocking(self._scripts.enqueue(queue, messages))

    def claim(self, queue: str, limit: int = 1, *, lease_ms: int = 5_000, wait_ms: int = 0) -> list[h.Delivered]:
        return _run_blocking(self._scripts.claim(queue, limit, lease_ms, wait_ms))

    def settle(self, queue: str, verb: str, receipts: Sequence[str], **options: Any) -> list[bool]:
        return _run_blocking(self._scripts.settle(queue, verb, receipts, options))

    def redrive(self, queue: str) -> int:
        return _run_blocking(self._scripts.redrive(queue))

    def remove(self, queue: str, verb: str = "purge", *, id: int | None = None, **options: Any) -> int:
        return _run_blocking(self._scripts.remove(queue, verb, id, options))

    def move(self, queue: str, to: str, ids: Sequence[int], *, state: str = "ready") -> int:
        return _run_blocking(self._scripts.move(queue, to, ids, state))

    def count(self, queue: str) -> h.Counted:
        return _run_blocking(self._scripts.count(queue))

    def backlog(self, queues: Sequence[str]) -> int:
        return _run_blocking(self._scripts.backlog(queues))

    def drain(
        self,
        queues: Sequence[str],
        *,
        lease_ms: int = 10_000,
        wait_ms: int = 20,
        patience_ms: int = PATIENCE_MS,
        pause: Callable[[], Any] | None = None,
    ) -> bool:
        return _run_blocking(self._scripts.drain(queues, lease_ms, wait_ms, patience_ms, pause))

    def read_journal(self) -> int:
        return _run_blocking(self._scripts.read_journal())


async def _run(script: Script[T]) -> T:
    try:
        step = next(script)
        while True:
            try:
                answer = await step()
            except Exception as error:
                step = script.throw(error)
            else:
                step = script.send(answer)
    except StopIteration as end:
        answered: T = end.value
        return answered


def _run_blocking(script: Script[T]) -> T:
    try:
        step = next(script)
        while True:
            try:
                answer = step()
            except Exception as error:
                step = script.throw(error)
            else:
                step = script.send(answer)
    except StopIteration as end:
        answered: T = end.value
        return answered
