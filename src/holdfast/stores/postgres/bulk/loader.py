"""Bulk loads: store messages in the databases from any thread or process that has no server.

A loader blocks, and has its own connections and node number. A load may be killed at any point and repeated, and
several may run at once and beside servers: a message with an idempotency key is stored once.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.background import sleep_for
from holdfast.clock import Clock, SystemClock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, check_draft
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.payloads.pieces import PIECES_ABOVE
from holdfast.stores.postgres.bulk.bulk_insert import BulkInsert, BulkInserted, BulkOutdated
from holdfast.stores.postgres.bulk.bulk_messages import BulkMessages, bulk_from_drafts, check_rows
from holdfast.stores.postgres.cluster.cluster import PostgresCluster, QueueMoved
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.notifier import notify_ready
from holdfast.stores.postgres.operations.enqueue import PostgresEnqueue
from holdfast.stores.postgres.payloads.pieces import PostgresPayloads
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants, QuotaShortage
from holdfast.stores.postgres.queues.registry import Numbered, QueueRegistry
from holdfast.stores.postgres.transactions.runner import StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresParts

# How often a transaction is run again because a queue was changed or moved meanwhile, and the pause before each try.
_TRIES = 50
_PAUSE_MS = 100
_RENEW_MS = 15_000


class Loader:
    """A bulk writer for one thread. Quotas apply to it; rates and limits on calls, which servers enforce, do not."""

    def __init__(
        self,
        urls: list[str],
        *,
        max_payload: int,
        durability: str = "fsync",
        shard_map: str = "slots",
        clock: Clock | None = None,
    ) -> None:
        """Connect to the databases `urls` of a store, and lease a node number. Payloads may have at most `max_payload`
        bytes."""
        self._max_payload = max_payload
        self._clock = clock or SystemClock()
        self._cluster = PostgresCluster(urls, durability=durability, shard_map=shard_map)
        self._grants = QuotaGrants(self._cluster)
        self._directory = QueueRegistry(self._cluster, self._grants)
        self._nodes = PostgresNodeNumbers(self._cluster)
        payloads = PostgresPayloads(self._cluster, self._directory, self._nodes)
        parts = PostgresParts(self._cluster, self._directory, self._nodes, self._grants, payloads)
        self._enqueues = PostgresEnqueue(parts, StepRunner(parts))
        self._loading = BulkInsert(self._cluster, self._directory, self._nodes, self._grants)
        self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self._open())
        except BaseException:
            self.close()
            raise

    def load(self, drafts: Mapping[QueueRef, list[Draft]]) -> int:
        """Store the messages, in one transaction per database, and return how many were new. A queue is created with
        its first message."""
        for each in drafts.values():
            for draft in each:
                check_draft(draft, self._max_payload)
        special = {ref: each for ref, each in drafts.items() if any(map(_is_special, each))}
        plain = bulk_from_drafts({ref: each for ref, each in drafts.items() if each and ref not in special})
        return self._loop.run_until_complete(self._load(plain, special))

    def load_rows(self, rows: pa.RecordBatch) -> int:
        """Store rows with the columns `tenant`, `queue`, `payload`, `content_type`, and optionally `key` and
        `priority`, as `load` does."""
        plain = check_rows(rows, self._max_payload)
        large = plain.rows.column("ref").filter(pc.greater(plain.rows.column("bytes"), PIECES_ABOVE))
        special = {plain.refs[index] for index in large.to_pylist()}
        drafts = plain.only(special).drafts() if special else {}
        return self._loop.run_until_complete(self._load(plain.only(set(plain.refs) - special), drafts))

    def close(self) -> None:
        """Give the node number back, and close the connections."""
        try:
            self._loop.run_until_complete(self._close())
        finally:
            self._loop.close()

    async def _open(self) -> None:
        await self._cluster.open()
        await self._nodes.lease(self._clock)
        self._leased_at = self._clock.now_ms()

    async def _close(self) -> None:
        with suppress(StoreUnavailable):  # the lease of the node number then ends by itself
            await self._nodes.release()
        await self._cluster.close()

    async def _load(self, waiting: BulkMessages, special: Mapping[QueueRef, list[Draft]]) -> int:
        if self._clock.now_ms() - self._leased_at > _RENEW_MS:
            await self._nodes.renew()
            self._leased_at = self._clock.now_ms()
        notices, stored = Notices(), 0
        for ref, each in special.items():
            stored += await self._enqueue(ref, each, notices)
        for _ in range(_TRIES):
            done: set[QueueRef] = set()
            for number, refs in self._by_shard(waiting.refs).items():
                try:
                    loaded = await self._load_on(self._cluster.shards[number], waiting.only(refs))
                except (BulkOutdated, QueueMoved):
                    continue
                stored += loaded.stored
                for ref, at_ms in loaded.ready_at.items():
                    notices.ready(ref, at_ms)
                done |= refs
            waiting = waiting.only(set(waiting.refs) - done)
            if not waiting.refs:
                await self._notify(notices)
                return stored
            await self._refresh(waiting.refs)
        raise StoreUnavailable(f"gave up after {_TRIES} concurrent changes of queue {waiting.refs[0]}; try again")

    def _by_shard(self, refs: Iterable[QueueRef]) -> dict[int, set[QueueRef]]:
        parts: defaultdict[int, set[QueueRef]] = defaultdict(set)
        for ref in refs:
            parts[self._cluster.number_of(ref)].add(ref)
        return parts

    async def _load_on(self, shard: PostgresDatabase, bulk: BulkMessages) -> BulkInserted:
        numbers: dict[QueueRef, Numbered | None] = {}
        for ref in bulk.refs:
            if self._cluster.home_of(ref.tenant) is not shard and await self._directory.known(ref) is None:
                numbers[ref] = await self._directory.take_number(ref)

        async def work(connection: Any) -> BulkInserted:
            return await self._loading.insert(connection, shard, bulk, numbers, self._clock.now_ms())

        while True:
            try:
                return await shard.step(work)
            except QuotaShortage as short:
                await self._grants.grant_more(short)

    async def _enqueue(self, ref: QueueRef, drafts: list[Draft], notices: Notices) -> int:
        for _ in range(_TRIES):
            try:
                answers = await self._enqueues.enqueue(ref, drafts, self._clock.now_ms(), notices, auto_create=True)
                return sum(not each.duplicate for each in answers)
            except QueueMoved:
                await self._refresh([ref])
        raise StoreUnavailable(f"queue {ref} is being moved to another database; try again")

    async def _refresh(self, refs: Iterable[QueueRef]) -> None:
        """Wait a moment, then drop these queues from the cache and refresh the slot table."""
        await sleep_for(self._clock, _PAUSE_MS)
        for ref in refs:
            self._directory.forget(ref)
        await self._cluster.refresh()

    async def _notify(self, notices: Notices) -> None:
        """Notify servers whose claims wait."""
        by_shard: defaultdict[int, dict[QueueRef, int]] = defaultdict(dict)
        for ref, at_ms in notices.ready_at.items():
            by_shard[self._cluster.number_of(ref)][ref] = at_ms
        for number, ready in by_shard.items():
            await self._cluster.shards[number].use(partial(_notify_ready, ready))


async def _notify_ready(ready: dict[QueueRef, int], connection: Any) -> None:
    await notify_ready(connection, ready)


def _is_special(draft: Draft) -> bool:
    """Return whether COPY cannot store the draft: a group has an order, and a large payload has pieces."""
    return draft.group is not None or len(draft.payload) > PIECES_ABOVE
