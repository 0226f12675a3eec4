"""The PostgreSQL store: the contract over the databases of a cluster."""

from contextlib import suppress

from holdfast.dice import Dice
from holdfast.model.answers import Enqueued, Result
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, StateChange, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import (
    Capabilities,
    Claims,
    JournalPage,
    Listener,
)
from holdfast.stores.event_loop.link import LoopBridge
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.verdicts import save_state
from holdfast.stores.payloads.pieces import PIECES_ABOVE
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.cluster.resharding import Resharding
from holdfast.stores.postgres.cluster.vacuum import Vacuum
from holdfast.stores.postgres.driver import PostgresDriver
from holdfast.stores.postgres.landing.buffer_target import PostgresBufferTarget
from holdfast.stores.postgres.notifier import Notifier
from holdfast.stores.postgres.operations.bulk_verbs import PostgresBulkVerbs
from holdfast.stores.postgres.operations.claims import PostgresClaims
from holdfast.stores.postgres.operations.enqueue import PostgresEnqueue
from holdfast.stores.postgres.operations.journal import PostgresJournal
from holdfast.stores.postgres.operations.ledgers import PostgresLedgers
from holdfast.stores.postgres.operations.message_moves import PostgresMoves
from holdfast.stores.postgres.operations.queue_sweep import QueueSweep
from holdfast.stores.postgres.operations.reads import PostgresReads
from holdfast.stores.postgres.operations.schedules import PostgresSchedules
from holdfast.stores.postgres.operations.store_sweep import PostgresSweep
from holdfast.stores.postgres.operations.verdicts import PostgresVerdicts
from holdfast.stores.postgres.payloads.pieces import PostgresPayloads, is_filled
from holdfast.stores.postgres.payloads.staging import PostgresStaging
from holdfast.stores.postgres.queues.directory import PostgresDirectory
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.transactions.runner import PostgresUnits, StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresParts
from holdfast.telemetry.figures import Figures


class PostgresStore:
    capabilities = Capabilities(claims_inline=False, is_durable=True, pushes_wakeups=False, streams_above=PIECES_ABOVE)

    def __init__(
        self,
        urls: list[str],
        dice: Dice,
        *,
        journal_retention_ms: int,
        durability: str = "fsync",
        shard_map: str = "slots",
        goes_by_caller: bool = False,
        uses_shortcuts: bool = True,
    ) -> None:
        """`goes_by_caller` is for tests: time is what callers say, not what the databases' clock says. So is
        `uses_shortcuts`: False lets every call run the shared logic, as shortcuts.py says."""
        self._cluster = PostgresCluster(urls, durability=durability, shard_map=shard_map, goes_by_caller=goes_by_caller)
        self._grants = QuotaGrants(self._cluster)
        self._directory = QueueRegistry(self._cluster, self._grants)
        self._nodes = PostgresNodeNumbers(self._cluster)
        self._driver = PostgresDriver(self._cluster, self._directory, self._ring)
        self._bell = Notifier(self._cluster, self._nodes, self._driver.hear)
        self._pieces = PostgresPayloads(self._cluster, self._directory, self._nodes)
        parts = PostgresParts(self._cluster, self._directory, self._nodes, self._grants, self._pieces)
        steps = StepRunner(parts)
        self._units = PostgresUnits(self._driver, parts, steps)
        self._upkeep = QueueSweep(steps)
        self._intake = PostgresEnqueue(parts, steps, uses_shortcuts=uses_shortcuts)
        self._settling = PostgresVerdicts(self._cluster, self._directory, steps, dice, uses_shortcuts=uses_shortcuts)
        self._reading = PostgresReads(self._driver, self._cluster, self._directory)
        self._moving = PostgresMoves(self._cluster, steps, self._grants, self._pieces)
        self._altering = PostgresBulkVerbs(
            self._driver, self._cluster, self._directory, self._reading, steps, self._moving
        )
        self.directory = PostgresDirectory(self._driver, self._cluster, self._directory, self._grants)
        self.schedules = PostgresSchedules(self._driver, self._cluster, self._directory, steps)
        self.ledgers = PostgresLedgers(self._driver, self._units, self._pieces, dice.roll)
        self.payloads = PostgresStaging(self._driver, self._cluster, self._directory, self._pieces)
        self._claiming = PostgresClaims(
            self._cluster, self._directory, steps, self._upkeep, dice, uses_shortcuts=uses_shortcuts
        )
        self._journal = PostgresJournal(self._cluster, journal_retention_ms)
        resharding = Resharding(self._cluster, self._grants)
        self._sweeping = PostgresSweep(
            *(self._driver, self._cluster, self._directory, steps, self._upkeep, self._journal, self._moving),
            *(self.payloads, resharding, journal_retention_ms),
        )
        self._vacuum = Vacuum(self._cluster)
        # The methods of the contract that one part does alone.
        self.shard_of = self._cluster.number_of
        self.get = self._reading.get
        self.peek = self._reading.peek
        self.browse = self._reading.browse
        self.counts = self._reading.counts
        self.alter = self._altering.alter
        self.sweep = self._sweeping.sweep
        self.take_tallies = self._driver.take_tallies

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._driver.listener = listener
        link = LoopBridge(runtime)
        self._driver.open(link)
        try:
            await link.call(self._open())
        except BaseException:
            await self._close()
            raise
        clock = runtime.clock
        loops = self._nodes.run(clock), self.payloads.run(clock), self._vacuum.run(clock), *self._bell.works(clock)
        for loop in loops:
            link.background(loop)
        listener.deadline(runtime.clock.now_ms())

    async def _open(self) -> None:
        await self._cluster.open()
        await self._nodes.lease()

    async def close(self) -> None:
        if self._driver.is_open:
            await self._close()

    async def _close(self) -> None:
        async def last() -> None:
            with suppress(StoreUnavailable):  # then its lease runs out by itself
                await self._nodes.release()
            await self._cluster.close()

        await self._driver.close(last())

    def _ring(self, notices: Notices) -> None:
        self._bell.ring(notices)

    def ground(self) -> PostgresBufferTarget:
        """For a store that buffers for this one; once it is open."""
        assert self._driver.link is not None
        return PostgresBufferTarget(
            *(self._cluster, self._directory, self._claiming, self._pieces, self._nodes),
            *(self._driver.link, self._driver.publish, self._bell.ring),
        )

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        return await self._driver.change(
            lambda notices: self._intake.enqueue(ref, drafts, now_ms, notices, auto_create=auto_create)
        )

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        claims = await self._driver.change(lambda notices: self._claiming.claim(ref, asks, now_ms, notices))
        if is_filled(asks, claims):
            return claims
        return await self._driver.call(lambda: self._pieces.filled(ref, asks, claims))

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        if not verdicts:
            return []
        return await self._driver.change(lambda notices: self._settling.settle(ref, verdicts, now_ms, notices))

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        return await self._units.run(ref, lambda unit: save_state(unit, ref, receipt, change), now_ms)

    # --- Upkeep ------------------------------------------------------------------------------------------------

    async def backup(self, target: str) -> None:
        raise InvalidArgument(
            "a PostgreSQL store is backed up by PostgreSQL's own tools, as pg_basebackup", field="url"
        )

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        async def read() -> JournalPage:
            row = None if tenant is None else await self.directory.find_tenant(tenant)
            retention_ms = None if row is None else row.config.journal_retention_ms
            oldest_at = 0 if retention_ms is None else self._cluster.stored(now_ms) - retention_ms
            return await self._journal.read(after, limit, tenant, oldest_at, until)

        return await self._driver.call(read)

    async def figures(self) -> Figures:
        is_up = self._driver.is_open and all(shard.is_up for shard in self._cluster.shards)
        return Figures(is_up=is_up, writes=sum(shard.statements for shard in self._cluster.shards))
