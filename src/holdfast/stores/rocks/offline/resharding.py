"""Changing the number of shards of a store that no process has open.

    read     all databases with their logs; the old store is not changed
    write    every key to the shard that will own its queue, in a new folder beside the old one
    check    all new shards, as `holdfast verify` does
    switch   the marker to the new folder, by one rename; before it, a crash leaves the old store
    remove   the old files; after a crash, the next opening removes them, or an unfinished new folder

Each journal stays in its shard, so that readers can continue at their positions: shard 2 keeps the journal of shard 2,
and only later events of a queue that moves are in the journal of its new shard. If there are fewer shards than before,
the journals of the removed shards are appended to the others, and readers must continue at a new position.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from pathlib import Path

import msgspec

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import format_positions
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import make_directory
from holdfast.stores.findings import Findings
from holdfast.stores.formats.message_record import decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_indexes import decode_row
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.log_position import POSITION_KEY
from holdfast.stores.rocks.engine.shard_links import LINK_KEY
from holdfast.stores.rocks.journal.event_blocks import Row, encode_rows
from holdfast.stores.rocks.journal.journal import TRIMMED, TRIMMED_UNTIL, decode_block
from holdfast.stores.rocks.offline.read_only import ReadOnlyShards, ReadOnlyStore
from holdfast.stores.rocks.recovery.layout import MAX_SHARDS, Layout, read_layout, refuse_legacy, remove_leftovers
from holdfast.stores.rocks.recovery.marker import MARKER, Role, check_directory, write_marker
from holdfast.stores.rocks.recovery.opening import make_in_use_error
from holdfast.stores.rocks.verify.store_check import check_shards

# Called with the name of a step, how much of it is done, and the total if it is known.
Progress = Callable[[str, int, int | None], None]

# A key of a family, and its value.
_Item = tuple[int, bytes, bytes]

_END = b"\xff" * (keys.P_SIZE + keys.ID_SIZE + 1)
# Number of keys between two calls of the progress function.
_PROGRESS_EVERY = 20_000
# Number of events in each block that is appended to a journal.
_BLOCK_EVENTS = 500

_HIGHEST = keys.META + b"highest id"
_FLOOR = keys.META + b"version floor"
_PAIR = struct.Struct(">QQ")
# Facts that all new shards get if any old shard has them.
_SHARED_FACTS = (keys.META + b"node", keys.META + b"in use")
# Facts about one database, its log or its journal.
_OWN_FACTS = (POSITION_KEY, LINK_KEY, TRIMMED, TRIMMED_UNTIL, keys.META + b"synced")
# Facts that are computed again for each shard. Without the fact "queue indexes", the next opening fills those indexes.
_MADE_ANEW = (_HIGHEST, _FLOOR, keys.META + b"queue indexes")


class Resharded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a resharding.

    `position` is the end of the journal if readers must continue there; None: they can continue at their positions.
    """

    path: str
    before: int
    shards: int
    queues: int = 0
    messages: int = 0
    position: str | None = None


def reshard(path: str | os.PathLike[str], shards: int, progress: Progress = lambda *_: None) -> Resharded:
    """Change the number of shards of a store.

    Raise `StoreUnavailable` if the store is in use or damaged, `InvalidArgument` for a wrong path or number. A store is
    unchanged after an error.
    """
    store = Path(os.path.realpath(path))
    if not 1 <= shards <= MAX_SHARDS:
        raise InvalidArgument(f"shards is {shards}: give 1 to {MAX_SHARDS}", field="shards")
    if not (store / MARKER).exists():
        raise InvalidArgument(f"{store} holds no store: give the directory that `holdfast.open` was given", field="dir")
    check_directory(store)
    lock = DirectoryLock.take(store)
    if lock is None:
        raise make_in_use_error(store)
    try:
        before = read_layout(store)
        refuse_legacy(before, "resharded")
        if before.shards == shards:
            remove_leftovers(before)
            return Resharded(path=str(path), before=before.shards, shards=shards)
        return msgspec.structs.replace(_reshard(before, shards, lock, progress), path=str(path))
    finally:
        lock.release()


def _reshard(before: Layout, shards: int, lock: DirectoryLock, progress: Progress) -> Resharded:
    remove_leftovers(before)
    after = Layout(before.path, Role(shards, before.next_folder(), is_made=True))
    try:
        messages = _write(before, after, lock, progress)
        report = _check(after, progress)
    except BaseException:
        remove_leftovers(before)
        raise
    write_marker(after.path, None, after.role)
    remove_leftovers(after)
    return Resharded(
        path=str(after.path),
        before=before.shards,
        shards=shards,
        queues=report.totals["queues"],
        messages=messages,
        position=_end_of_journals(after) if shards < before.shards else None,
    )


def _write(before: Layout, after: Layout, lock: DirectoryLock, progress: Progress) -> int:
    """Write all keys of the old shards to the new ones, and return the number of messages."""
    source = ReadOnlyShards(before.path)
    databases: list[Database] = []
    try:
        split = _Split(source.shards, after.shards, progress)
        for number, path in enumerate(after.paths):
            make_directory(path)
            database = Database(path, lock=lock, shard=number)
            databases.append(database)
            database.begin()
        for items in split.items():
            for database, part in zip(databases, items, strict=True):
                database.load(part)
        for database in databases:
            progress("flush", 0, None)
            database.close()
        return split.messages
    finally:
        for database in databases:
            database.discard()
        source.close()


def _check(after: Layout, progress: Progress) -> Findings:
    shards: list[ReadOnlyStore] = []
    try:
        shards += map(ReadOnlyStore, after.paths)
        findings = Findings(progress)
        check_shards(shards, findings)
    finally:
        for shard in shards:
            shard.close()
    if violations := findings.report(str(after.path)).violations:
        raise StoreUnavailable(
            f"{after.path} was not changed, because the check of the new shards failed: {violations[0]}. Run "
            f"`holdfast verify {after.path}`",
            path=str(after.path),
        )
    return findings


def _end_of_journals(after: Layout) -> str:
    source = ReadOnlyShards(after.path)
    try:
        return format_positions([_next_event(shard) - 1 for shard in source.shards])
    finally:
        source.close()


def _next_event(shard: ReadOnlyStore) -> int:
    """Return the number that the next event in the shard's journal gets."""
    last = shard.floor(keys.JOURNAL, _END)
    if last is not None:
        return keys.parse_instant(last) + len(decode_block(shard.get(keys.JOURNAL, last) or b""))
    trimmed = shard.get(keys.DIRECTORY, TRIMMED)
    return 1 if trimmed is None else keys.parse_instant(trimmed)


class _Split:
    """The assignment of all keys of the old shards to the new ones."""

    def __init__(self, source: list[ReadOnlyStore], shards: int, progress: Progress) -> None:
        self._source = source
        self._shards = shards
        self._progress = progress
        self.messages = 0
        # The new shard of each payload in pieces, by blob id. Unfinished uploads have none, and are left out.
        self._blob_owners: dict[bytes, int] = {}
        self._parts: list[list[_Item]] = [[] for _ in range(shards)]

    def items(self) -> Iterator[list[list[_Item]]]:
        """Yield the keys of all families in bounded steps. Each step has one list for each new shard."""
        count = 0
        for shard, item in self._routed():
            self._parts[shard].append(item)
            count += 1
            if count % _PROGRESS_EVERY == 0 or len(item[2]) > _PROGRESS_EVERY:
                self._progress("copy", count, None)
                yield self._take()
        self._progress("copy", count, None)
        yield self._take()

    def _take(self) -> list[list[_Item]]:
        taken, self._parts = self._parts, [[] for _ in range(self._shards)]
        return taken

    def _owner(self, p: bytes) -> int:
        return keys.shard_of(p, self._shards)

    def _routed(self) -> Iterator[tuple[int, _Item]]:
        for database in self._source:
            yield from self._queues(database)
            # Messages are read before the indexes, because they determine the owners of the pieces.
            for family in (keys.MESSAGES, keys.VISIBLE, keys.EXPIRIES, keys.LEASES):
                for key, value in database.items(family, b"", _END):
                    if family == keys.MESSAGES:
                        self._note_message(key, value)
                    yield self._owner(key[: keys.P_SIZE]), (family, key, value)
            yield from self._indexes(database)
        yield from self._facts()
        yield from self._journals()

    def _note_message(self, key: bytes, value: bytes) -> None:
        self.messages += 1
        pieces = decode_message(keys.parse_id(key[keys.P_SIZE :]), value).envelope.pieces
        if pieces is not None:
            self._blob_owners[keys.pack_blob_id(pieces.blob_id)] = self._owner(key[: keys.P_SIZE])

    def _queues(self, database: ReadOnlyStore) -> Iterator[tuple[int, _Item]]:
        for key, value in database.items(keys.DIRECTORY, b"", b"\xff"):
            item = keys.DIRECTORY, key, value
            space = key[:2]
            if space == keys.TENANTS:
                yield 0, item
            elif space == keys.QUEUES:
                row = decode_row(value)
                yield self._owner(keys.prefix(row.tenant_id, row.queue_id)), item
            elif space == keys.QUEUE_NAMES:
                # Every shard needs all names, because its journal may have events of any queue.
                for shard in range(self._shards):
                    yield shard, item
            elif space == keys.ARRIVALS:
                continue  # no transfer is unfinished, and later ones have higher numbers
            elif space == keys.TRANSFERS:
                raise StoreUnavailable(
                    f"{database.path} has a move to another shard that is not finished: open the store once, which "
                    "finishes it, then try again",
                    path=str(database.path),
                )
            elif space != keys.META:
                yield self._owner(key[2:]), item
            elif key not in (*_SHARED_FACTS, *_OWN_FACTS, *_MADE_ANEW):
                yield 0, item

    def _indexes(self, database: ReadOnlyStore) -> Iterator[tuple[int, _Item]]:
        for key, value in database.items(keys.INDEXES, b"", b"\xff"):
            space = key[:1]
            if space in keys.PER_QUEUE_SPACES:
                owner: int | None = self._owner(key[1 : 1 + keys.P_SIZE])
            elif space in (keys.TTLS, keys.KEPT, keys.SEEN_ENDS):
                owner = self._owner(key[9 : 9 + keys.P_SIZE])
            elif space == keys.PIECES:
                owner = self._blob_owners.get(key[1:9])
            else:
                assert space == keys.STAGES
                owner = None
            if owner is not None:
                yield owner, (keys.INDEXES, key, value)

    def _facts(self) -> Iterator[tuple[int, _Item]]:
        def found(key: bytes) -> list[bytes]:
            values = (shard.get(keys.DIRECTORY, key) for shard in self._source)
            return [value for value in values if value is not None]

        facts = {key: values[0] for key in _SHARED_FACTS if (values := found(key))}
        if highest := found(_HIGHEST):
            facts[_HIGHEST] = max(highest)
        if floors := [_PAIR.unpack(raw) for raw in found(_FLOOR)]:
            facts[_FLOOR] = _PAIR.pack(*map(max, zip(*floors, strict=True)))
        for shard in range(self._shards):
            for key, value in facts.items():
                yield shard, (keys.DIRECTORY, key, value)

    def _journals(self) -> Iterator[tuple[int, _Item]]:
        for number, database in enumerate(self._source[: self._shards]):
            for key, block in database.items(keys.JOURNAL, b"", _END):
                yield number, (keys.JOURNAL, key, block)
            for fact in (TRIMMED, TRIMMED_UNTIL):
                if (value := database.get(keys.DIRECTORY, fact)) is not None:
                    yield number, (keys.DIRECTORY, fact, value)
        for number in range(min(self._shards, len(self._source))):
            added = self._source[number + self._shards :: self._shards]
            yield from self._added_events(number, added)

    def _added_events(self, number: int, added: list[ReadOnlyStore]) -> Iterator[tuple[int, _Item]]:
        """Yield the events of removed shards, ordered by time, as new events at the end of another shard's journal."""
        seq, rows = _next_event(self._source[number]), list[Row]()
        for row in merge(*map(_rows, added), key=lambda row: row[1]):
            rows.append(row)
            if len(rows) == _BLOCK_EVENTS:
                yield number, (keys.JOURNAL, keys.instant(seq), encode_rows(rows))
                seq, rows = seq + len(rows), []
        if rows:
            yield number, (keys.JOURNAL, keys.instant(seq), encode_rows(rows))


def _rows(shard: ReadOnlyStore) -> Iterable[Row]:
    for _, block in shard.items(keys.JOURNAL, b"", _END):
        yield from decode_block(block)
