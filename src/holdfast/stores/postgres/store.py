"""The PostgreSQL store: the contract over the databases of a cluster."""

from contextlib import suppress

from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.model.answers import Enqueued, Result, Saved
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, StateChange, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import Listener
from holdfast.stores.event_loop.link import LoopBridge
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.verdicts import save_state
from holdfast.stores.payloads.pieces import PIECES_ABOVE
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.connection_bounds import ConnectionBounds
from holdfast.stores.postgres.cluster.folding import Folding
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.cluster.slot_moves import Resharding
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
from holdfast.stores.postgres.operations.store_sweep import PostgresSweep, SweptParts
from holdfast.stores.postgres.operations.verdicts import PostgresVerdicts
from holdfast.stores.postgres.payloads.pieces import PostgresPayloads, is_filled
from holdfast.stores.postgres.payloads.staging import PostgresStaging
from holdfast.stores.postgres.queues.directory import PostgresDirectory
from holdfast.stores.postgres.queues.queue_turns import QueueTurns
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.transactions.runner import PostgresUnits, StepRunner
from holdfast.stores.postgres.transactions.unit import PostgresParts
from holdfast.stores.values import Capabilities, Claims, JournalPage
from holdfast.telemetry.figures import ConnectionFigures, Figures


class PostgresStore:
    """A `Store` over one or several databases that any number of servers share."""

    capabilities = Capabilities(claims_inline=False, is_durable=True, pushes_wakeups=False, streams_above=PIECES_ABOVE)

    def __init__(
        self,
        urls: list[str],
        dice: Dice,
        *,
        journal_retention_ms: int,
        durability: str = "fsync",
        shard_map: str = "slots",
        bounds: ConnectionBounds | None = None,
        uses_caller_time: bool = False,
        uses_shortcuts: bool = True,
    ) -> None:
        """`bounds` limits every wait on a database. `uses_caller_time` and `uses_shortcuts` are for tests. With the
        first, the time is what callers say, not what the databases' clocks say. Without the second, every call runs
        the shared logic, as `shortcuts.py` describes."""
        self._cluster = PostgresCluster(
            urls, durability=durability, shard_map=shard_map, bounds=bounds, uses_caller_time=uses_caller_time
        )
        self._turns = QueueTurns(bounds or ConnectionBounds())
        self._grants = QuotaGrants(self._cluster)
        self._directory = QueueRegistry(self._cluster, self._grants)
        self._nodes = PostgresNodeNumbers(self._cluster)
        self._driver = PostgresDriver(self._cluster, self._directory, self._notify_peers)
        self._notifier = Notifier(self._cluster, self._nodes, self._driver.receive)
        self._payloads = PostgresPayloads(self._cluster, self._directory, self._nodes)
        parts = PostgresParts(self._cluster, self._directory, self._nodes, self._grants, self._payloads)
        steps = StepRunner(parts)
        self._units = PostgresUnits(self._driver, parts, steps, self._turns)
        self._queue_sweep = QueueSweep(steps)
        self._enqueues = PostgresEnqueue(parts, steps, uses_shortcuts=uses_shortcuts)
        self._verdicts = PostgresVerdicts(self._cluster, self._directory, steps, dice, uses_shortcuts=uses_shortcuts)
        self._reads = PostgresReads(self._driver, self._cluster, self._directory)
        self._moves = PostgresMoves(self._cluster, steps, self._grants, self._payloads)
        self._bulk_verbs = PostgresBulkVerbs(
            self._driver, self._cluster, self._directory, self._reads, steps, self._moves
        )
        self.directory = PostgresDirectory(self._driver, self._cluster, self._directory, self._grants)
        self.schedules = PostgresSchedules(self._driver, self._cluster, self._directory, self._nodes, steps)
        self.ledgers = PostgresLedgers(self._driver, self._units, self._payloads, dice.roll)
        self.payloads = PostgresStaging(self._driver, self._cluster, self._directory, self._payloads)
        self._claims = PostgresClaims(
            self._cluster, self._directory, steps, self._queue_sweep, dice, uses_shortcuts=uses_shortcuts
        )
        self._journal = PostgresJournal(self._cluster, journal_retention_ms)
        swept = SweptParts(
            queue_sweep=self._queue_sweep,
            journal=self._journal,
            moves=self._moves,
            staging=self.payloads,
            resharding=Resharding(self._cluster, self._grants),
        )
        self._store_sweep = PostgresSweep(
            self._driver, self._cluster, self._directory, steps, swept, journal_retention_ms
        )
        self._vacuum = Vacuum(self._cluster)
        self._folding = Folding(self._cluster)
        # Methods of the contract that one part implements alone.
        self.shard_of = self._cluster.number_of
        self.get = self._reads.get
        self.peek = self._reads.peek
        self.browse = self._reads.browse
        self.counts = self._reads.counts
        self.alter = self._bulk_verbs.alter
        self.sweep = self._store_sweep.sweep
        self.take_tallies = self._driver.take_tallies

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        """Connect to the databases, lease a node number, and start the background loops."""
        self._driver.listener = listener
        link = LoopBridge(runtime)
        self._driver.open(link)
        try:
            await link.call(self._open(runtime.clock))
        except BaseException:
            await self._close()
            raise
        clock = runtime.clock
        loops = (
            *(self._nodes.run(clock), self.payloads.run(clock), self._vacuum.run(clock), self._folding.run(clock)),
            *self._notifier.loops(clock),
        )
        for loop in loops:
            link.background(loop)
        listener.deadline(runtime.clock.now_ms())

    async def _open(self, clock: Clock) -> None:
        await self._cluster.open()
        await self._nodes.lease(clock)

    async def close(self) -> None:
        """Stop the loops, give the node number back, and close all connections."""
        if self._driver.is_open:
            await self._close()

    async def _close(self) -> None:
        async def last() -> None:
            with suppress(StoreUnavailable):  # the lease of the node number then ends by itself
                await self._nodes.release()
            await self._cluster.close()

        await self._driver.close(last())

    def _notify_peers(self, notices: Notices) -> None:
        self._notifier.notify(notices)

    def buffer_target(self) -> PostgresBufferTarget:
        """Return the part of the store that the fast path uses. The store must be open."""
        assert self._driver.link is not None
        return PostgresBufferTarget(
            *(self._cluster, self._directory, self._claims, self._payloads, self._nodes),
            *(self._driver.link, self._driver.publish, self._notifier.notify),
        )

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        return await self._driver.change(
            lambda notices: self._turns.run(
                ref, lambda: self._enqueues.enqueue(ref, drafts, now_ms, notices, auto_create=auto_create)
            )
        )

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        claims = await self._driver.change(
            lambda notices: self._turns.run(ref, lambda: self._claims.claim(ref, asks, now_ms, notices))
        )
        if is_filled(asks, claims):
            return claims
        return await self._driver.call(lambda: self._payloads.fill(ref, asks, claims))

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        if not verdicts:
            return []
        return await self._driver.change(
            lambda notices: self._turns.run(ref, lambda: self._verdicts.settle(ref, verdicts, now_ms, notices))
        )

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> Saved:
        return await self._units.run(ref, lambda unit: save_state(unit, ref, receipt, change), now_ms)

    # --- Maintenance ------------------------------------------------------------------------------------------------

    async def backup(self, target: str) -> None:
        """Raise `InvalidArgument`: PostgreSQL has its own tools for backups."""
        raise InvalidArgument(
            "a PostgreSQL store is backed up with PostgreSQL's own tools, such as pg_basebackup", field="url"
        )

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        async def read() -> JournalPage:
            row = None if tenant is None else await self.directory.find_tenant(tenant)
            retention_ms = None if row is None else row.config.journal_retention_ms
            oldest_at = 0 if retention_ms is None else self._cluster.database_time(now_ms) - retention_ms
            return await self._journal.read(after, limit, tenant, oldest_at, until)

        return await self._driver.call(read)

    async def figures(self) -> Figures:
        """Return the figures for the metrics."""
        shards = self._cluster.shards
        problems = [problem for shard in shards if (problem := shard.problem()) is not None]
        problems += [f"queue {ref} is locked by another transaction" for ref in self._turns.locked_queues()]
        return Figures(
            is_up=self._driver.is_open and all(shard.is_up for shard in shards),
            problems=problems,
            writes=sum(shard.statements for shard in shards),
            connections=ConnectionFigures(
                limit=sum(shard.bounds.connections for shard in shards),
                in_use=sum(shard.pool.busy for shard in shards),
                waiting=sum(shard.pool.waiting for shard in shards),
                lock_timeouts=sum(shard.lock_timeouts for shard in shards),
                failures=sum(shard.failures + shard.pool.failures for shard in shards),
            ),
        )
