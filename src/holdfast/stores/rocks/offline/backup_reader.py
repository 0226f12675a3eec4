"""Bulk reads of a backup, by any number of processes at once. The backup is only read and never changes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.model.answers import Found
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import format_positions, parse_positions
from holdfast.model.ids import to_uuid
from holdfast.model.names import QueueRef
from holdfast.model.requests import StateDocument
from holdfast.stores.disk.processes import is_running
from holdfast.stores.formats.message_record import decode_life, decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.journal.journal import EVENT_NAMES, decode_block
from holdfast.stores.rocks.offline.read_only import ReadOnlyShards, ReadOnlyStore
from holdfast.stores.rocks.recovery.marker import read_marker
from holdfast.wire.arrow import EVENT_FIELDS

_END = b"\xff" * 9
_decode_ref = msgspec.msgpack.Decoder(QueueRef).decode
_BATCH = 20_000


class Copy(ReadOnlyShards):
    """A store that no process has open, such as a backup."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the directory. Raise `StoreUnavailable` if a running process has the store open."""
        owner = read_marker(Path(path)).pid
        if owner is not None and is_running(owner):
            raise StoreUnavailable(
                f"{path} is in use by process {owner}: read a copy, made with `holdfast backup {path} COPY`, or "
                "connect to the server that has it open",
                path=str(path),
                pid=owner,
            )
        super().__init__(path)

    def names(self) -> dict[bytes, QueueRef]:
        """Return the names of all existing and deleted queues, by prefix."""
        space = keys.QUEUE_NAMES
        return {
            key[len(space) :]: _decode_ref(raw)
            for shard in self.shards
            for key, raw in shard.items(keys.DIRECTORY, space, keys.after(space))
        }

    def owner(self, p: bytes) -> ReadOnlyStore:
        """Return the shard of the queue with this prefix."""
        return self.shards[keys.shard_of(p, len(self.shards))]


class CopyJournal:
    """The journal of a backup, read in ranges between two positions."""

    def __init__(self, path: str, tenant: str | None) -> None:
        self._copy = Copy(path)
        self._names = self._copy.names()
        self._wanted = None if tenant is None else {p for p, ref in self._names.items() if ref.tenant == tenant}

    def measure(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        """Return the number of events after the position, up to `limit`, and the position of the last of them."""
        positions, found = self._positions(after), 0
        for shard, seq, row in self._rows(after, until):
            if found == limit:
                break
            positions[shard] = seq
            found += self._wanted is None or row[0] in self._wanted
        return found, format_positions(positions)

    def read(self, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
        """Yield the events after one position up to another, in Arrow batches."""
        rows: list[tuple[int, int, Any]] = []
        for shard, seq, row in self._rows(after, until):
            if self._wanted is None or row[0] in self._wanted:
                rows.append((shard, seq, row))
            if len(rows) == _BATCH:
                yield self._batch(rows)
                rows = []
        if rows:
            yield self._batch(rows)

    def _positions(self, text: str | None) -> list[int]:
        return parse_positions(text, len(self._copy.shards))

    def _rows(self, after: str | None, until: str | None) -> Iterator[tuple[int, int, Any]]:
        """Yield the shard, the number and the row of each event after a position, all of one shard before the next."""
        ends = [None] * len(self._copy.shards) if until is None else self._positions(until)
        for shard, (database, position, last) in enumerate(
            zip(self._copy.shards, self._positions(after), ends, strict=True)
        ):
            for seq, row in _rows_of(database, position):
                if last is not None and seq > last:
                    break
                yield shard, seq, row

    def _batch(self, rows: list[tuple[int, int, Any]]) -> pa.RecordBatch:
        p, at, event, id, attempt, version, priority, enqueued_at, claimed_at, size, error, reason, correlation_id = (
            zip(*(row for _, _, row in rows), strict=True)
        )
        refs = [self._names[each] for each in p]
        texts = [to_uuid(each) for each in id]
        columns = {
            "seq": [seq for _, seq, _ in rows],
            "shard": [shard for shard, _, _ in rows],
            "at": at,
            "event": [EVENT_NAMES[each].value for each in event],
            "tenant": [ref.tenant for ref in refs],
            "queue": [ref.queue for ref in refs],
            "id": texts,
            "attempt": attempt,
            "version": version,
            "priority": priority,
            "enqueued_at": enqueued_at,
            "claimed_at": claimed_at,
            "bytes": size,
            "error": error,
            "reason": reason,
            "correlation_id": [given or text for given, text in zip(correlation_id, texts, strict=True)],
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[name], getattr(pa, kind)()) for name, (kind, _) in EVENT_FIELDS.items()],
            names=list(EVENT_FIELDS),
        )

    def close(self) -> None:
        """Close the backup."""
        self._copy.close()


class CopyMessages:
    """The messages of a backup, by queue."""

    def __init__(self, path: str) -> None:
        self._copy = Copy(path)
        self._prefixes = {ref: p for p, ref in sorted(self._copy.names().items())}

    def refs(self) -> list[QueueRef]:
        """Return the names of all queues that ever existed, in the order of their numbers."""
        return list(self._prefixes)

    def found(self, ref: QueueRef) -> Iterator[Found]:
        """Yield all messages of a queue in order of id, with their whole payloads."""
        p = self._prefixes.get(ref)
        if p is None:
            return
        shard = self._copy.owner(p)
        for key, raw in shard.items(keys.MESSAGES, p, keys.after(p)):
            message = decode_message(keys.parse_id(key[keys.P_SIZE :]), raw)
            lease = shard.get(keys.LEASES, key)
            own = shard.get(keys.INDEXES, keys.LIVES + key) if lease is None else lease
            life = message.first if own is None else decode_life(own)[1]
            envelope = message.envelope
            if envelope.pieces is not None:
                space = keys.PIECES + envelope.pieces.blob_id.to_bytes(8, "big")
                parts = [part for _, part in shard.items(keys.INDEXES, space, keys.after(space))]
                envelope = msgspec.structs.replace(envelope, payload=b"".join(parts), pieces=None)
            yield Found(envelope, life, StateDocument())

    def close(self) -> None:
        """Close the backup."""
        self._copy.close()


def _rows_of(database: ReadOnlyStore, position: int) -> Iterator[tuple[int, Any]]:
    start = database.floor(keys.JOURNAL, keys.instant(position + 1)) or keys.instant(0)
    for key, block in database.items(keys.JOURNAL, start, _END):
        for seq, row in enumerate(decode_block(block), keys.parse_instant(key)):
            if seq > position:
                yield seq, row
