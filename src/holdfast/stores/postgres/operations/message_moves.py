"""Move messages from a queue on one database to a queue on another.

    1. target   insert a row of `arrivals`: the messages as they were seen, counted against quotas, not visible yet
    2. source   delete the messages that are still as they were seen, and write their ids to `moves`: it is decided
    3. target   insert the messages with those ids, and delete the arrival
    4. source   delete the decision

A crash after 1 or 2 leaves an arrival. Sweeps find it and look for the decision; if there is none, they write a
decision without ids, which cancels the move and makes a late step 2 fail.

Payloads in pieces are copied between 1 and 2, to new blob ids: piece by piece, each only while the arrival exists, and
each piece refreshes the arrival's time. They belong to the arrival; those of messages that do not arrive are given up
with it.
"""

from typing import Any
from uuid import UUID, uuid4

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.requests import Filter, Move
from holdfast.model.rules.lifecycle import Change
from holdfast.model.rules.transitions import TRANSITIONS, Cause
from holdfast.model.rules.verdicts import apply_verb
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.payloads.pieces import piece_count
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.payloads.pieces import PostgresPayloads
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.queues.quota_grants import QuotaAmount, QuotaGranted, QuotaGrants, QuotaShortage
from holdfast.stores.postgres.schema.rows import MessageRow, decode_whole_row
from holdfast.stores.postgres.schema.statements import SQL, WHOLE
from holdfast.stores.postgres.transactions.locks import admit_groups
from holdfast.stores.postgres.transactions.runner import StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresUnit

# An arrival this old belongs to a server that died or is slow; any sweep that finds it ends it.
_ABANDONED_S = 10.0
_TRIES = 10

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[Any]]).decode

_ANNOUNCE = (
    "INSERT INTO arrivals (move, from_shard, from_queue, queue_key, messages, bytes, body) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7)"
)
_DECIDE = "INSERT INTO moves (move, ids) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING move"
_DECIDED = "SELECT ids FROM moves WHERE move = $1"
_FORGET = "DELETE FROM moves WHERE move = $1"
_ARRIVAL = "SELECT * FROM arrivals WHERE move = $1 FOR UPDATE"
_ARRIVED = "DELETE FROM arrivals WHERE move = $1"
_WAITING = "SELECT move, from_shard FROM arrivals WHERE at < clock_timestamp() - make_interval(secs => $1) LIMIT 100"
_OLD = "DELETE FROM moves WHERE at < clock_timestamp() - interval '1 day'"
_INSERT = (
    f"INSERT INTO items (queue_key, {', '.join(WHOLE)}) "
    f"VALUES ({', '.join(f'${blob_id}' for blob_id in range(1, len(WHOLE) + 2))})"
)


_PLACE, _GROUP, _BYTES = (WHOLE.index(name) for name in ("piece_place", "group_name", "bytes"))


def _cancelled_error() -> StoreUnavailable:
    return StoreUnavailable("the move took so long that it was cancelled and nothing was moved; try again")


class PostgresMoves:
    """Moves of messages between databases."""

    def __init__(
        self, cluster: PostgresCluster, steps: StepRunner, grants: QuotaGrants, payloads: PostgresPayloads
    ) -> None:
        self._cluster = cluster
        self._steps = steps
        self._grants = grants
        self._payloads = payloads

    async def move(
        self,
        info: QueueInfo,
        target: QueueInfo,
        verb: Move,
        which: Filter,
        ids: list[int],
        statuses: list[int],
        now_ms: int,
        notices: Notices,
    ) -> int:
        """Move the messages among `ids` that still match, and return how many moved."""
        rows = await info.shard.fetch(SQL["by_ids"], info.key, ids)
        stored_ms = self._cluster.database_time(now_ms)
        meant = [
            (row, entry)
            for row, entry in ((row, decode_whole_row(row)) for row in rows)
            if entry.status in statuses and which.matches(entry.envelope, entry.life, stored_ms)
        ]
        if not meant:
            return 0
        move = uuid4()
        blob_ids = {
            entry.envelope.id: self._payloads.take_blob_id(now_ms)
            for _, entry in meant
            if entry.envelope.pieces is not None
        }
        await self._announce(move, info, target, meant, blob_ids, now_ms)
        await self._copy_payloads(move, info.shard, target.shard, [entry for _, entry in meant], blob_ids)
        gone = await self._decide(move, info, target, verb, [entry for _, entry in meant], now_ms, notices)
        await self._finish(move, target.shard, gone, now_ms, notices)
        await info.shard.fetch(_FORGET, move)
        return len(gone)

    async def _announce(
        self,
        move: UUID,
        info: QueueInfo,
        target: QueueInfo,
        meant: list[tuple[Any, MessageRow]],
        blob_ids: dict[int, int],
        now_ms: int,
    ) -> None:
        """Insert the arrival. `blob_ids` are the new blob ids of payloads in pieces, by message."""
        sizes = [entry.bytes for _, entry in meant]
        body = _encode(
            [
                [blob_ids.get(row["id"]) if column == "piece_place" else row[column] for column in WHOLE]
                for row, _ in meant
            ]
        )

        granted: QuotaGranted | None = None

        async def work(unit: PostgresUnit) -> None:
            connection = unit.connection
            queue = await unit.open_key(target.key)
            if queue is None:
                raise no_such_queue(target.ref)
            if queue.row.drain_until is not None:
                raise being_deleted(target.ref)
            if target.ref.tenant == info.ref.tenant:
                await self._grants.check_moved(connection, queue, sizes, granted)
            else:
                await self._grants.check(connection, queue, sizes)
            await connection.execute(
                *(_ANNOUNCE, move, info.shard.number, str(info.ref), target.key, len(sizes), sum(sizes), body)
            )

        for _ in range(_TRIES):
            try:
                await self._steps.run_on(target.shard, work, now_ms, Notices())
                return
            except QuotaShortage as short:
                if target.ref.tenant == info.ref.tenant:
                    granted = await self._grants.grant_for_move(short)
                else:
                    await self._grants.grant_more(short)
        raise StoreUnavailable(
            f"gave up after {_TRIES} concurrent changes of the quotas of tenant {target.ref.tenant}; try again"
        )

    async def _copy_payloads(
        self,
        move: UUID,
        source: PostgresDatabase,
        target: PostgresDatabase,
        meant: list[MessageRow],
        blob_ids: dict[int, int],
    ) -> None:
        """Copy payloads in pieces to the target."""
        for entry in meant:
            pieces = entry.envelope.pieces
            for number in range(0 if pieces is None else piece_count(pieces.size)):
                assert pieces is not None
                rows = await source.fetch(SQL["piece"], pieces.blob_id, number)
                if not rows:
                    break  # the message is gone and will not be moved
                blob_id = blob_ids[entry.envelope.id]
                if not await target.fetch(SQL["arriving_piece"], move, blob_id, number, rows[0]["piece"]):
                    raise _cancelled_error()

    async def _decide(
        self,
        move: UUID,
        info: QueueInfo,
        target: QueueInfo,
        verb: Move,
        seen: list[MessageRow],
        now_ms: int,
        notices: Notices,
    ) -> list[int]:
        """Remove the messages from the source, and return the ids of those that go."""
        as_seen = {entry.envelope.id: entry for entry in seen}

        async def work(unit: PostgresUnit) -> list[int]:
            queue = await unit.open_key(info.key)
            if queue is None:
                return []
            gone, went = [], QuotaAmount(0, 0)
            for id, entry in (await unit.load(queue, as_seen)).items():
                known = as_seen[id]
                if entry.life != known.life or entry.envelope.pieces != known.envelope.pieces:
                    continue
                change = apply_verb(entry.life, entry.envelope, verb, queue.default_ttl_ms, unit.now_ms)
                unit.add_event(queue, entry, change, reason=f"to {target.ref}")
                unit.remove_moved(queue, entry)
                gone.append(id)
                went = went.plus(QuotaAmount(1, entry.bytes))
            if await unit.connection.fetchval(_DECIDE, move, gone) is None:
                raise _cancelled_error()
            await unit.write()
            if target.ref.tenant == info.ref.tenant:
                await self._grants.lower_part(unit.connection, queue.key, went)
            return gone

        return await self._steps.run_on(info.shard, work, now_ms, notices)

    async def _finish(self, move: UUID, shard: PostgresDatabase, ids: list[int], now_ms: int, notices: Notices) -> None:
        """Turn the decided messages of an arrival into messages of the target queue."""
        wanted = set(ids)

        async def work(unit: PostgresUnit) -> None:
            connection = unit.connection
            arrival = await connection.fetchrow(_ARRIVAL, move)
            if arrival is None:
                return  # another server has finished the move
            await connection.execute(_ARRIVED, move)
            body = _decode(arrival["body"])
            if any(row[0] in wanted and row[_GROUP] is not None for row in body):
                await admit_groups(connection, arrival["queue_key"])
            queue = await unit.open_key(arrival["queue_key"])
            # If the queue was deleted meanwhile, its arriving messages are dropped.
            rows = [] if queue is None else [row for row in body if row[0] in wanted]
            others = body if queue is None else [row for row in body if row[0] not in wanted]
            blob_ids = [row[_PLACE] for row in others if row[_PLACE] is not None]
            if blob_ids:
                await connection.execute(SQL["give_up_places"], blob_ids)
            missing = QuotaAmount(len(others), sum(row[_BYTES] for row in others))
            await self._grants.lower_part(connection, arrival["queue_key"], missing)
            if queue is not None and rows:
                await connection.executemany(_INSERT, [(queue.key, *row) for row in rows])
                await self._add_to_queue(unit, queue, [row[0] for row in rows], arrival["from_queue"])

        await self._steps.run_on(shard, work, now_ms, notices)

    async def _add_to_queue(self, unit: PostgresUnit, queue: QueueInfo, ids: list[int], from_queue: str) -> None:
        """Count the arrived messages, and add their events."""
        entries = (await unit.load(queue, ids)).values()
        grouped = [entry.envelope.id for entry in entries if entry.envelope.group is not None]
        if grouped:
            await unit.connection.execute(SQL["has_groups"], queue.key, max(grouped))
        for entry in entries:
            event = TRANSITIONS[entry.life.state, Cause.MOVE].event
            unit.add_event(queue, entry, Change(entry.life, event), reason=f"from {from_queue}")
            unit.add_moved(None, queue, entry)

    # --- Interrupted moves -------------------------------------------------------------------------------------

    async def resolve(self, shard: PostgresDatabase, now_ms: int, notices: Notices) -> int:
        """Finish or cancel the abandoned arrivals on this database. Return how many there were."""
        resolved = 0
        for row in await shard.fetch(_WAITING, _ABANDONED_S):
            if row["from_shard"] >= len(self._cluster.shards):
                continue  # the source was removed from this server's URLs, and only it knows the decision
            source = self._cluster.shards[row["from_shard"]]
            await source.fetch(_DECIDE, row["move"], [])
            [decided] = await source.fetch(_DECIDED, row["move"])
            await self._finish(row["move"], shard, decided["ids"], now_ms, notices)
            resolved += 1
        await shard.fetch(_OLD)
        return resolved
