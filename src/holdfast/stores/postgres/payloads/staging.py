"""Payloads that arrive in parts: written as they arrive, and owned by a message once it is enqueued.

    first piece      insert into `stages` and `pieces`
    further pieces   insert into `pieces`, only while the stage is not abandoned
    enqueue          delete from `stages` and insert into `items`, in one transaction
    abandon          set is_abandoned in `stages`: by the writer, or by any server's sweep once its server is silent
    sweep            delete from `pieces`, and finally from `stages`

Every few seconds a server reports which uploads it is working on. A slow caller therefore loses nothing, and uploads of
a dead server are recognised within two minutes. Abandoning and enqueueing lock the same row, so only one of them
happens.
"""

import asyncio
import logging
from collections import defaultdict
from typing import Any

from holdfast.background import Backoff, run_forever, sleep_for
from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, Pieces
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas, TenantConfig
from holdfast.stores.event_loop.driver import LoopDriver, on_driver
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.quotas import check_quotas, check_room_for_queue
from holdfast.stores.logic.results import check_accepts
from holdfast.stores.payloads.pieces import PIECE_BYTES
from holdfast.stores.payloads.staging import StageWriter
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.payloads.pieces import PostgresPayloads, PostgresPieceReader
from holdfast.stores.postgres.queues.queue_info import QueueInfo, decode_config
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.statements import SQL

_log = logging.getLogger("holdfast")

_REPORT_MS = 15_000
# The server of an upload without a report for this long is dead.
SILENT_S = 120.0
# Number of pieces that one transaction deletes.
_DROP = 64


class PostgresStaging:
    """`PayloadStore`, and the deletion of abandoned payloads for sweeps."""

    def __init__(
        self, driver: LoopDriver, cluster: PostgresCluster, directory: QueueRegistry, payloads: PostgresPayloads
    ) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory
        self._payloads = payloads
        self._writers: dict[int, PostgresStage] = {}

    # --- Writing ---------------------------------------------------------------------------------------------------

    @on_driver
    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> "PostgresStage":
        """Begin an upload, as `PayloadStore.stage` says."""
        info = await self._directory.load(ref)
        check_accepts(ref, None if info is None else info.row, auto_create=auto_create)
        quotas = await self._quotas_of_new(ref.tenant) if info is None else info.config.quotas
        shard = self._cluster.shard_of(ref) if info is None else info.shard
        blob_id = self._payloads.take_blob_id(now_ms)
        writer = self._writers[blob_id] = PostgresStage(self, ref, draft, blob_id, shard, info, quotas, now_ms)
        return writer

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PostgresPieceReader:
        """Return a reader of a message's payload, as `PayloadStore.read` says."""
        return self._payloads.reader(self.driver, ref, id, pieces, start)

    async def _quotas_of_new(self, tenant: str) -> Quotas:
        """Return the quotas for a queue that its first message will create."""
        home = self._cluster.home_of(tenant)
        rows = await home.fetch(SQL["tenant"], tenant)
        quotas = (decode_config(rows[0]["config"]) if rows else TenantConfig()).quotas
        [row] = await home.fetch(SQL["directory_count"], tenant)
        check_room_for_queue(tenant, quotas, row["count"])
        return quotas

    @on_driver
    async def put(self, writer: "PostgresStage", piece: bytes) -> None:
        """Write a piece. Refuse it before it is written if the message could no longer be enqueued."""
        async with writer.turn:
            if writer.is_closed:
                raise _abandoned_error()
            await self._check_quotas(writer, writer.bytes_with(piece))
            if writer.pieces:
                rows = await writer.shard.fetch(SQL["stage_more"], writer.blob_id, writer.pieces, piece)
            else:
                rows = await writer.shard.fetch(SQL["stage_first"], writer.blob_id, writer.ref.tenant, piece)
            if not rows:
                raise _abandoned_error()
            writer.count_piece(piece)

    async def _check_quotas(self, writer: "PostgresStage", size: int) -> None:
        """Check the quotas early. Concurrent uploads count for one another, or together they could fill the disk beyond
        any quota. Only the enqueue's own check is exact."""
        quotas, tenant = writer.quotas, writer.ref.tenant
        check_quotas(tenant, Quotas(max_message_bytes=quotas.max_message_bytes), 0, 0, [size])
        if not quotas.limits_totals or await self._is_duplicate(writer):
            return
        messages = kept = 0
        for _, [row] in await self._cluster.fetch_all(SQL["staged"], tenant, writer.blob_id):
            messages += row["uploads"]
            kept += row["uploaded"]
        for _, [row] in await self._cluster.fetch_all(SQL["usage"], tenant):
            messages += row["messages"]
            kept += row["bytes"]
        check_quotas(tenant, quotas, messages, kept, [size])

    async def _is_duplicate(self, writer: "PostgresStage") -> bool:
        """Return whether the queue has seen the draft's idempotency key: the enqueue then returns that message and
        stores nothing."""
        if writer.draft.key is None or writer.info is None:
            return False
        at_ms = self._cluster.database_time(writer.now_ms)
        return bool(await writer.shard.fetch(SQL["known_keys"], writer.info.key, [writer.draft.key], at_ms))

    def abandon(self, writer: "PostgresStage") -> None:
        """Abandon an upload, unless it was enqueued."""
        if self._writers.pop(writer.blob_id, None) is not None:
            self.driver.background(self._abandon(writer))

    async def _abandon(self, writer: "PostgresStage") -> None:
        try:
            async with writer.turn:
                writer.is_closed = True
                if writer.pieces:
                    await writer.shard.fetch(SQL["give_up_stage"], writer.blob_id)
                    notices = Notices()
                    notices.deadline(self._cluster.database_time(writer.now_ms))
                    self.driver.publish(notices)
        except StoreUnavailable as error:
            _log.debug("upload_not_abandoned error=%s: a sweep will abandon it", error.message)

    async def run(self, clock: Clock) -> None:
        """Report uploads in progress to the databases, until cancelled."""
        await run_forever(self.report_once, Backoff("uploads"), clock, lambda: sleep_for(clock, _REPORT_MS))

    async def report_once(self) -> None:
        """Report all uploads in progress; raise the last error once every database was tried."""
        failure: Exception | None = None
        by_shard: defaultdict[PostgresDatabase, list[int]] = defaultdict(list)
        for writer in list(self._writers.values()):
            by_shard[writer.shard].append(writer.blob_id)
        for shard, blob_ids in by_shard.items():
            try:
                await shard.fetch(SQL["keep_stages"], blob_ids)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    # --- Abandoned payloads -----------------------------------------------------------------------------------------

    async def sweep(self, shard: PostgresDatabase, limit: int) -> int:
        """Delete up to about `limit` abandoned pieces, and return how many."""
        await shard.fetch(SQL["give_up_old_stages"], SILENT_S)
        dropped = 0
        if not await self.has_work(shard):
            return 0
        while dropped < limit and (some := await shard.step(_drop_some)):
            dropped += some
        return dropped

    async def has_work(self, shard: PostgresDatabase) -> bool:
        """Return whether the database has abandoned payloads."""
        [row] = await shard.fetch(SQL["has_given_up"])
        return bool(row["some"])


async def _drop_some(connection: Any) -> int:
    blob_id = await connection.fetchval(SQL["given_up"])
    if blob_id is None:
        return 0
    status = await connection.execute(SQL["drop_pieces"], blob_id, _DROP)
    dropped = int(status.rpartition(" ")[2])
    if dropped < _DROP:
        await connection.execute(SQL["drop_stage"], blob_id)
    return dropped + 1


def _abandoned_error() -> StoreUnavailable:
    return StoreUnavailable("this upload paused for too long and was abandoned; send it again")


class PostgresStage(StageWriter):
    """An upload in progress."""

    def __init__(
        self,
        staging: PostgresStaging,
        ref: QueueRef,
        draft: Draft,
        blob_id: int,
        shard: PostgresDatabase,
        info: QueueInfo | None,
        quotas: Quotas,
        now_ms: int,
    ) -> None:
        super().__init__(ref, draft, blob_id, PIECE_BYTES)
        self._staging = staging
        self.shard = shard
        self.info = info
        self.quotas = quotas
        self.now_ms = now_ms
        self.is_closed = False
        # The piece of a caller that has left may still be in progress when the upload is abandoned.
        self.turn = asyncio.Lock()

    async def _put(self, piece: bytes) -> None:
        await self._staging.put(self, piece)

    def abandon(self) -> None:
        """Abandon the upload, unless it was enqueued."""
        self._staging.abandon(self)
