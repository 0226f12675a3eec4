"""persist-queue: an embedded queue on SQLite, which syncs its log with every commit."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from persistqueue import Empty, SQLiteAckQueue

from bench.peers.contract import Claimed, Client

_CLEAR_AFTER = 1_000


class SqliteClient(Client):
    """Threads share one object for each queue. There are no batches."""

    def __init__(self, address: str, *, notifies: bool) -> None:
        self._directory = Path(address)
        self._queues: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._acked = 0

    def _queue(self, name: str) -> Any:
        with self._lock:
            if name not in self._queues:
                self._queues[name] = SQLiteAckQueue(str(self._directory / name), multithreading=True)
            return self._queues[name]

    def enqueue(self, queue: str, payloads: list[bytes]) -> None:
        opened = self._queue(queue)
        for payload in payloads:
            opened.put(payload)

    def claim(self, queue: str, limit: int, wait_s: float) -> list[Claimed]:
        opened, found = self._queue(queue), []
        with suppress(Empty):
            found.append(opened.get(block=wait_s > 0, timeout=wait_s, raw=True))
            while len(found) < limit:
                found.append(opened.get(block=False, raw=True))
        return [(item["pqid"], item["data"]) for item in found]

    def ack(self, queue: str, handles: list[Any]) -> None:
        opened = self._queue(queue)
        for handle in handles:
            opened.ack(id=handle)
        self._acked += len(handles)
        if self._acked >= _CLEAR_AFTER:  # acked rows stay until they are cleared, and make every get slower
            self._acked = 0
            opened.clear_acked_data(max_delete=10 * _CLEAR_AFTER, keep_latest=0)

    def close(self) -> None:
        for opened in self._queues.values():
            opened.close()
