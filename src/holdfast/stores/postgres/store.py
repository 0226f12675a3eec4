"""The PostgreSQL store: the contract over the databases of a cluster."""

from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found, LedgerEntry, Result
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.message import Draft, Pieces, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Ask, Filter, Settle, StateChange, Verb, Verdict
from holdfast.model.schedules import Schedule, Tick
from holdfast.runtime import Runtime
from holdfast.stores.contract import (
    AlterStep,
    Capabilities,
    Claims,
    DueSchedules,
    JournalPage,
    Listener,
    Listing,
    PayloadReader,
    PayloadWriter,
    QueueRow,
    Swept,
    TenantRow,
)
from holdfast.stores.link import Link
from holdfast.stores.notices import Notices
from holdfast.stores.postgres.altering import Altering
from holdfast.stores.postgres.bell import Bell
from holdfast.stores.postgres.claiming import Claiming
from holdfast.stores.postgres.cluster import Cluster, QueueMoved
from holdfast.stores.postgres.directory import Directory
from holdfast.stores.postgres.grants import Grants
from holdfast.stores.postgres.ground import Ground
from holdfast.stores.postgres.intake import Intake
from holdfast.stores.postgres.journal import Journal
from holdfast.stores.postgres.ledgers import Ledgers
from holdfast.stores.postgres.moving import Moving
from holdfast.stores.postgres.nodes import Nodes
from holdfast.stores.postgres.pieces import PIECES_ABOVE, Payloads, is_filled
from holdfast.stores.postgres.queues import QueueInfo
from holdfast.stores.postgres.reading import Reading
from holdfast.stores.postgres.resharding import Resharding
from holdfast.stores.postgres.settling import Settling
from holdfast.stores.postgres.staging import Staging
from holdfast.stores.postgres.steps import Step
from holdfast.stores.postgres.sweeping import Sweeping
from holdfast.stores.postgres.timetable import Timetable
from holdfast.stores.postgres.upkeep import Upkeep
from holdfast.stores.postgres.vacuum import Vacuum
from holdfast.telemetry.figures import Figures

T = TypeVar("T")


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
    ) -> None:
        """`goes_by_caller` is for tests: time is what callers say, not what the databases' clock says."""
        self._cluster = Cluster(urls, durability=durability, shard_map=shard_map, goes_by_caller=goes_by_caller)
        self._grants = Grants(self._cluster)
        self._directory = Directory(self._cluster, self._grants)
        self._nodes = Nodes(self._cluster)
        self._upkeep = Upkeep(self._cluster)
        self._ledgers = Ledgers()
        self._payloads = Payloads(self._cluster, self._directory, self._nodes)
        self._staging = Staging(self._cluster, self._directory, self._payloads, self._later, self._publish)
        self._intake = Intake(self._cluster, self._directory, self._nodes, self._grants, self._payloads)
        self._claiming = Claiming(self._cluster, self._directory, self._upkeep, self._ledgers, dice)
        self._settling = Settling(self._cluster, self._directory, self._upkeep, dice)
        self._reading = Reading(self._cluster, self._directory)
        self._moving = Moving(self._cluster, self._upkeep, self._grants, self._payloads)
        self._altering = Altering(
            *(self._cluster, self._directory, self._reading, self._upkeep),
            *(self._grants, self._moving, self._payloads),
        )
        self._timetable = Timetable(self._cluster, self._directory, self._intake)
        self._journal = Journal(self._cluster, journal_retention_ms)
        resharding = Resharding(self._cluster, self._grants)
        self._sweeping = Sweeping(
            *(self._cluster, self._directory, self._upkeep, self._journal, self._moving, self._staging),
            *(resharding, journal_retention_ms),
        )
        self._vacuum = Vacuum(self._cluster)
        self._bell = Bell(self._cluster, self._nodes, self._hear)
        self._tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)
        self._link: Link | None = None

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._listener = listener
        self._runtime = runtime
        self._link = Link(runtime)
        try:
            await self._link.call(self._open())
        except BaseException:
            await self._close()
            raise
        for work in (self._nodes.keep(), self._staging.keep(), self._vacuum.run(), *self._bell.works()):
            self._link.background(work)
        listener.deadline(runtime.clock.now_ms())

    async def _open(self) -> None:
        await self._cluster.open()
        await self._nodes.lease()

    async def close(self) -> None:
        if self._link is not None:
            await self._close()

    async def _close(self) -> None:
        async def last() -> None:
            with suppress(StoreUnavailable):  # then its lease runs out by itself
                await self._nodes.release()
            await self._cluster.close()

        link, self._link = self._link, None
        assert link is not None
        await link.close(last())

    def shard_of(self, ref: QueueRef) -> int:
        return self._cluster.number_of(ref)

    # --- Calls and what they lead to ---------------------------------------------------------------------------

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """What changes nothing."""
        if self._link is None:
            work.close()
            raise StoreUnavailable("this queue was closed: open it again")
        return await self._link.call(self._followed(work))

    async def _followed(self, work: Coroutine[Any, Any, T]) -> T:
        """A queue that was found to be on its way is looked for where it is, the next time."""
        try:
            return await work
        except QueueMoved as moved:
            await self._follow(moved)
            raise

    async def _follow(self, moved: QueueMoved) -> bool:
        """Whether it is on another database by now."""
        known = self._directory.remembered(moved.ref)
        self._directory.forget(moved.ref)
        await self._cluster.refresh()
        return known is not None and self._cluster.shard_of(moved.ref) is not known.shard

    async def _change(self, make: Callable[[Notices], Coroutine[Any, Any, T]]) -> T:
        """What changes something, and is told."""
        if self._link is None:
            raise StoreUnavailable("this queue was closed: open it again")
        notices = Notices()

        async def work() -> T:
            try:
                value = await make(notices)
            except QueueMoved as moved:
                if not await self._follow(moved):
                    raise
                value = await make(notices)
            self._bell.ring(notices)
            return value

        return await self._link.call(work(), lambda _: self._tell(notices))

    def _publish(self, notices: Notices) -> None:
        """From the driver's loop: what a change led to that no call waits for."""
        if self._link is not None:
            self._bell.ring(notices)
            self._link.enter(lambda: self._tell(notices))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """On the driver's loop, soon; nobody waits for it, and a store that closes does not do it."""
        if self._link is None:
            work.close()
        else:
            self._link.background(work)

    def ground(self) -> Ground:
        """For a store that buffers for this one; once it is open."""
        assert self._link is not None
        return Ground(
            *(self._cluster, self._directory, self._claiming, self._payloads, self._nodes),
            *(self._link, self._publish, self._bell.ring),
        )

    def _tell(self, notices: Notices) -> None:
        callers = self._cluster.callers
        for ref, counted in notices.tallies.items():
            self._tallies[ref] += counted
        for ref, at_ms in notices.ready_at.items():
            self._listener.ready(ref, callers(at_ms))
        if notices.deadline_at is not None:
            self._listener.deadline(callers(notices.deadline_at))
        if notices.scheduled_at is not None:
            self._listener.scheduled(callers(notices.scheduled_at))

    def _hear(self, ref: QueueRef | None, at_ms: int) -> None:
        """What another server's changes make possible; on the driver's loop."""

        def tell() -> None:
            if ref is None:
                self._listener.scheduled(self._cluster.callers(at_ms))
            elif self._listener.is_waited_for(ref):
                self._listener.ready(ref, self._cluster.callers(at_ms))

        if self._link is not None:
            self._link.enter(tell)

    # --- The directory -----------------------------------------------------------------------------------------

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        return await self._call(self._directory.tenant(tenant))

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        info = await self._call(self._directory.load(ref))
        return None if info is None else info.row

    async def list_tenants(self) -> list[TenantRow]:
        return await self._call(self._directory.tenants())

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return await self._call(self._directory.list_queues(tenant))

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        return await self._call(self._directory.put_tenant(tenant, config))

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        async def create() -> QueueRow:
            info = await self._directory.load(ref)
            return (info or await self._directory.create(ref)).row

        return await self._call(create())

    async def put_policy(self, ref: QueueRef, policy: QueuePolicy, now_ms: int) -> QueueRow:
        return await self._change_row(ref, self._directory.put_policy(ref, policy), now_ms)

    async def pause(self, ref: QueueRef, is_paused: bool, now_ms: int) -> QueueRow:
        return await self._change_row(ref, self._directory.pause(ref, is_paused), now_ms)

    async def drain(self, ref: QueueRef, until_ms: int, now_ms: int) -> QueueRow:
        return await self._change_row(ref, self._directory.drain(ref, self._cluster.stored(until_ms)), now_ms)

    async def _change_row(self, ref: QueueRef, work: Coroutine[Any, Any, QueueRow], now_ms: int) -> QueueRow:
        async def change(notices: Notices) -> QueueRow:
            row = await work
            notices.ready(ref, self._cluster.stored(now_ms))
            if row.drain_until is not None:
                notices.deadline(self._cluster.stored(now_ms))
            return row

        return await self._change(change)

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        return await self._change(
            lambda notices: self._intake.enqueue(ref, drafts, now_ms, notices, auto_create=auto_create)
        )

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> PayloadWriter:
        return await self._call(self._staging.open(self._call, ref, draft, now_ms, auto_create=auto_create))

    async def read_payload(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PayloadReader:
        return self._payloads.reader(self._call, ref, id, pieces, start)

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        claims = await self._change(lambda notices: self._claiming.claim(ref, asks, now_ms, notices))
        return claims if is_filled(asks, claims) else await self._call(self._payloads.filled(ref, asks, claims))

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        if not verdicts:
            return []
        return await self._change(lambda notices: self._settling.settle(ref, verdicts, now_ms, notices))

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        return await self._call(self._settling.save_state(ref, receipt, change, now_ms))

    # --- Inspection --------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        async def get() -> Found | None:
            return await self._reading.get(await self._directory.require(ref), id)

        return await self._call(get())

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        async def peek() -> list[Found]:
            return await self._reading.peek(await self._directory.require(ref), limit, now_ms)

        return await self._call(peek())

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        async def browse() -> Listing:
            info = await self._directory.require(ref)
            return await self._reading.browse(info, state, which, after, limit, now_ms)

        return await self._call(browse())

    async def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        async def count() -> Counts:
            info = await self._directory.require(ref)
            [counts] = await self._reading.counts(info.shard, [info.key], now_ms)
            return counts

        return await self._call(count())

    async def tenant_counts(self, tenant: str, now_ms: int) -> Counts:
        async def count() -> Counts:
            every: list[Counts] = []
            for number, keys in (await self._directory.keys_of(tenant)).items():
                every += await self._reading.counts(self._cluster.shards[number], keys, now_ms)
            return Counts.total(every)

        return await self._call(count())

    # --- Operators ---------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        return await self._change(lambda notices: self._altering.alter(ref, verb, which, after, limit, now_ms, notices))

    # --- The claim ledger --------------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        async def read() -> list[LedgerEntry]:
            info = await self._directory.require(ref)

            async def entries(connection: Any) -> list[LedgerEntry]:
                return await self._ledgers.entries(connection, info, consumer, self._cluster.stored(now_ms), number)

            return await self._payloads.filled_entries(ref, await info.shard.use(entries))

        return await self._call(read())

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        async def ack(notices: Notices) -> list[Result]:
            info = await self._directory.require(ref)

            async def choose(step: Step, info: QueueInfo) -> list[Verdict]:
                receipts = await self._ledgers.close(step, info, consumer, upto)
                return [Verdict(settle=Settle.ACK, receipt=receipt) for receipt in receipts]

            return await self._settling.settle_in_step(info, choose, now_ms, notices) or []

        return await self._change(ack)

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        async def extend(notices: Notices) -> list[Result]:
            info = await self._directory.require(ref)

            async def choose(step: Step, info: QueueInfo) -> list[Verdict]:
                receipts = await self._ledgers.receipts(step.connection, info, consumer)
                return [Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms) for receipt in receipts]

            return await self._settling.settle_in_step(info, choose, now_ms, notices) or []

        return await self._change(extend)

    # --- Schedules ---------------------------------------------------------------------------------------------

    async def find_schedule(self, ref: QueueRef, name: str) -> Schedule | None:
        return await self._call(self._timetable.find(ref, name))

    async def list_schedules(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        return await self._call(self._timetable.page(ref, after, limit))

    async def put_schedule(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        return await self._change(lambda notices: self._timetable.put(ref, was, schedule, notices))

    async def fire_schedule(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        return await self._change(lambda notices: self._timetable.fire(ref, schedule, tick, now_ms, notices))

    async def delete_schedule(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        return await self._call(self._timetable.delete(ref, name))

    async def due_schedules(self, limit: int, now_ms: int) -> DueSchedules:
        return await self._call(self._timetable.due(limit, now_ms))

    # --- Upkeep ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        return await self._change(lambda notices: self._sweeping.sweep(limit, now_ms, notices))

    async def backup(self, target: str) -> None:
        raise InvalidArgument(
            "a PostgreSQL store is backed up by PostgreSQL's own tools, as pg_basebackup", field="url"
        )

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        async def read() -> JournalPage:
            row = None if tenant is None else await self._directory.tenant(tenant)
            retention_ms = None if row is None else row.config.journal_retention_ms
            oldest_at = 0 if retention_ms is None else self._cluster.stored(now_ms) - retention_ms
            return await self._journal.read(after, limit, tenant, oldest_at, until)

        return await self._call(read())

    # --- Figures -----------------------------------------------------------------------------------------------

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        taken, self._tallies = self._tallies, defaultdict(Counter)
        return taken

    async def figures(self) -> Figures:
        is_up = self._link is not None and all(shard.is_up for shard in self._cluster.shards)
        return Figures(is_up=is_up, writes=sum(shard.statements for shard in self._cluster.shards))
