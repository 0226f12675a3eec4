"""The least that a log-first engine could do: an upper bound for the embedded store, and no store.

It has fencing, leases, one frame and one sync for each commit, a block of journal rows in each frame, and checkpoints
that write the survivors and the journal to RocksDB and flush it. It has no counters, priorities, groups, delays, TTLs,
keys, quotas, waiters or replay.
"""

import collections
import os
import struct
import time
from pathlib import Path
from zlib import crc32

import msgspec
from rocksdict import Rdict, WriteBatch, WriteOptions

from bench.embedded.raw import open_plain

_HEAD = struct.Struct("<IIQ")
_SEGMENT_BYTES = 64 << 20
_CHECKPOINT_BYTES = 64 << 20
_encode = msgspec.msgpack.Encoder().encode


class _Message(msgspec.Struct, gc=False):
    id: int
    payload: bytes
    version: int = 0
    token: bytes = b""
    expires_at: int = 0


class LogSketch:
    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._file = os.open(path / "log", os.O_RDWR | os.O_CREAT)
        for at in range(0, _SEGMENT_BYTES, 1 << 20):
            os.pwrite(self._file, bytes(1 << 20), at)
        os.fsync(self._file)
        self._at = self._number = self._written = 0
        self._db: Rdict = open_plain(path / "db")
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property; the stub says method
        self._next_id = 1
        self._ready: collections.deque[_Message] = collections.deque()
        self._held: dict[int, _Message] = {}
        self._dirty: dict[int, _Message] = {}
        self._gone: list[int] = []
        self._journal: list[bytes] = []

    def _append(self, changes: object, rows: list[tuple[int, ...]], *, syncs: bool) -> None:
        block = _encode(rows)
        body = _encode((changes, block))
        self._number += 1
        frame = _HEAD.pack(len(body), crc32(body), self._number) + body
        if self._at + len(frame) > _SEGMENT_BYTES:
            self._at = 0
        os.pwrite(self._file, frame, self._at)
        self._at += len(frame)
        self._written += len(frame)
        self._journal.append(block)
        if syncs:
            os.fdatasync(self._file)

    def enqueue(self, payloads: list[bytes]) -> None:
        now = time.time_ns() // 1_000_000
        first, self._next_id = self._next_id, self._next_id + len(payloads)
        made = [_Message(first + number, payload) for number, payload in enumerate(payloads)]
        rows = [(0, now, message.id, 0, 0, 100, len(message.payload)) for message in made]
        self._append((0, now, first, payloads), rows, syncs=True)
        self._ready.extend(made)
        self._dirty.update({message.id: message for message in made})
        if self._written >= _CHECKPOINT_BYTES:
            self._checkpoint()

    def claim(self, limit: int, lease_ms: int = 30_000) -> list[tuple[int, bytes, int]]:
        now = time.time_ns() // 1_000_000
        count = min(limit, len(self._ready))
        tokens = os.urandom(16 * count)
        taken = [self._ready.popleft() for _ in range(count)]
        for number, message in enumerate(taken):
            message.version += 1
            message.token = tokens[16 * number : 16 * number + 16]
            message.expires_at = now + lease_ms
            self._held[message.id] = message
        rows = [(1, now, message.id, message.version, message.version, 100, len(message.payload)) for message in taken]
        self._append((1, now, now + lease_ms, [message.id for message in taken], tokens), rows, syncs=False)
        return [(message.id, message.token, message.version) for message in taken]

    def ack(self, receipts: list[tuple[int, bytes, int]]) -> None:
        now = time.time_ns() // 1_000_000
        done = []
        for id, token, version in receipts:
            message = self._held.get(id)
            if message is not None and message.token == token and message.version == version > 0:
                done.append(message)
        rows = [(2, now, message.id, message.version, message.version, 100, len(message.payload)) for message in done]
        self._append((2, now, [message.id for message in done]), rows, syncs=True)
        for message in done:
            del self._held[message.id]
            if self._dirty.pop(message.id, None) is None:
                self._gone.append(message.id)

    def _checkpoint(self) -> None:
        batch = WriteBatch(raw_mode=True)
        for message in self._dirty.values():
            batch.put(message.id.to_bytes(16, "big"), _encode(message))
        for id in self._gone:
            batch.delete(id.to_bytes(16, "big"))
        for number, block in enumerate(self._journal):
            batch.put(b"j" + (self._number + number).to_bytes(8, "big"), block)
        self._db.write(batch, self._unlogged)
        self._db.flush(True)
        self._dirty.clear()
        self._gone.clear()
        self._journal.clear()
        self._written = 0

    def close(self) -> None:
        os.close(self._file)
        self._db.close()
