"""Payloads that come bit by bit: written as they come, and a message's once it is enqueued.

    first piece      + stages, pieces
    further pieces   + pieces           only while nobody has given the stage up
    enqueue          - stages, + items  in the one transaction that makes it a message
    given up         stages, is_abandoned: by its writer, or by any server's sweep once its own has been silent
    swept            - pieces, and at last - stages

A server says every few seconds which uploads it is at, so that a slow caller loses nothing, and what a dead server left
is told apart within a minute or two. Whoever gives up and whoever enqueues lock the same row: it is one or the other.
"""

import asyncio
import logging
from collections import defaultdict
from typing import Any

from holdfast.background import Backoff, run_forever
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

_KEEP_S = 15.0
# An upload of which nobody has said a word for so long is one whose server died.
SILENT_S = 120.0
# Pieces that one transaction deletes.
_DROP = 64


class PostgresStaging:
    """`PayloadStore`, and the staged payloads for sweeps."""

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
        info = await self._directory.load(ref)
        check_accepts(ref, None if info is None else info.row, auto_create=auto_create)
        quotas = await self._quotas_of_new(ref.tenant) if info is None else info.config.quotas
        shard = self._cluster.shard_of(ref) if info is None else info.shard
        place = self._payloads.take_place(now_ms)
        writer = self._writers[place] = PostgresStage(self, ref, draft, place, shard, info, quotas, now_ms)
        return writer

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PostgresPieceReader:
        return self._payloads.reader(self.driver, ref, id, pieces, start)

    async def _quotas_of_new(self, tenant: str) -> Quotas:
        """For a queue that its first message will make."""
        home = self._cluster.home_of(tenant)
        rows = await home.fetch(SQL["tenant"], tenant)
        quotas = (decode_config(rows[0]["config"]) if rows else TenantConfig()).quotas
        [row] = await home.fetch(SQL["directory_count"], tenant)
        check_room_for_queue(tenant, quotas, row["count"])
        return quotas

    @on_driver
    async def put(self, writer: "PostgresStage", piece: bytes) -> None:
        """Refused before it is written, if the message could not be enqueued any more."""
        async with writer.turn:
            if writer.is_closed:
                raise _given_up()
            await self._check_quotas(writer, writer.bytes_with(piece))
            if writer.pieces:
                rows = await writer.shard.fetch(SQL["stage_more"], writer.place, writer.pieces, piece)
            else:
                rows = await writer.shard.fetch(SQL["stage_first"], writer.place, writer.ref.tenant, piece)
            if not rows:
                raise _given_up()
            writer.count_piece(piece)

    async def _check_quotas(self, writer: "PostgresStage", size: int) -> None:
        """Those on their way count for each other, or they could fill the disk beside any quota. Early, and not exact
        beside others who enqueue: that is the enqueue's own check."""
        quotas, tenant = writer.quotas, writer.ref.tenant
        check_quotas(tenant, Quotas(max_message_bytes=quotas.max_message_bytes), 0, 0, [size])
        if not quotas.are_counted or await self._is_duplicate(writer):
            return
        messages = kept = 0
        for _, [row] in await self._cluster.fetch_all(SQL["staged"], tenant, writer.place):
            messages += row["messages"] + row["uploads"]
            kept += row["bytes"] + row["uploaded"]
        check_quotas(tenant, quotas, messages, kept, [size])

    async def _is_duplicate(self, writer: "PostgresStage") -> bool:
        """It will be answered with the message that has its key already, and kept nowhere."""
        if writer.draft.key is None or writer.info is None:
            return False
        at_ms = self._cluster.stored(writer.now_ms)
        return bool(await writer.shard.fetch(SQL["known_keys"], writer.info.key, [writer.draft.key], at_ms))

    def close(self, writer: "PostgresStage") -> None:
        if self._writers.pop(writer.place, None) is not None:
            self.driver.background(self._give_up(writer))

    async def _give_up(self, writer: "PostgresStage") -> None:
        try:
            async with writer.turn:
                writer.is_closed = True
                if writer.pieces:
                    await writer.shard.fetch(SQL["give_up_stage"], writer.place)
                    notices = Notices()
                    notices.deadline(self._cluster.stored(writer.now_ms))
                    self.driver.publish(notices)
        except StoreUnavailable as error:
            _log.debug("an upload is given up later, by a sweep: %s", error.message)

    async def keep(self) -> None:
        """Tell the databases about uploads under way, until cancelled."""
        await run_forever(self.keep_once, Backoff("uploads"), lambda: asyncio.sleep(_KEEP_S))

    async def keep_once(self) -> None:
        """Keep all of them; raise the last error once every database was asked."""
        failure: Exception | None = None
        by_shard: defaultdict[PostgresDatabase, list[int]] = defaultdict(list)
        for writer in list(self._writers.values()):
            by_shard[writer.shard].append(writer.place)
        for shard, places in by_shard.items():
            try:
                await shard.fetch(SQL["keep_stages"], places)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    # --- What was given up -----------------------------------------------------------------------------------------

    async def sweep(self, shard: PostgresDatabase, limit: int) -> int:
        """Delete up to so many pieces that no message has, or a few more."""
        await shard.fetch(SQL["give_up_old_stages"], SILENT_S)
        dropped = 0
        if not await self.has_work(shard):
            return 0
        while dropped < limit and (some := await shard.step(_drop_some)):
            dropped += some
        return dropped

    async def has_work(self, shard: PostgresDatabase) -> bool:
        [row] = await shard.fetch(SQL["has_given_up"])
        return bool(row["some"])


async def _drop_some(connection: Any) -> int:
    place = await connection.fetchval(SQL["given_up"])
    if place is None:
        return 0
    status = await connection.execute(SQL["drop_pieces"], place, _DROP)
    dropped = int(status.rpartition(" ")[2])
    if dropped < _DROP:
        await connection.execute(SQL["drop_stage"], place)
    return dropped + 1


def _given_up() -> StoreUnavailable:
    return StoreUnavailable("this upload rested for too long and was given up: send it again")


class PostgresStage(StageWriter):
    def __init__(
        self,
        staging: PostgresStaging,
        ref: QueueRef,
        draft: Draft,
        place: int,
        shard: PostgresDatabase,
        info: QueueInfo | None,
        quotas: Quotas,
        now_ms: int,
    ) -> None:
        super().__init__(ref, draft, place, PIECE_BYTES)
        self._staging = staging
        self.shard = shard
        self.info = info
        self.quotas = quotas
        self.now_ms = now_ms
        self.is_closed = False
        # A piece whose caller has left may still be on its way when it is given up.
        self.turn = asyncio.Lock()

    async def _put(self, piece: bytes) -> None:
        await self._staging.put(self, piece)

    def abandon(self) -> None:
        self._staging.close(self)
