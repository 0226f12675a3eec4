"""The object store: the contract over a bucket."""

from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from msgspec.structs import replace

from holdfast.clock import SystemClock
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
from holdfast.stores.objects.bucket import Bucket, Changed, Missing, Unanswered
from holdfast.stores.objects.disk import DiskBucket
from holdfast.stores.objects.ledgers import receipts_of
from holdfast.stores.objects.papers import QueuePaper
from holdfast.stores.objects.parts import Parts
from holdfast.stores.objects.payloads import BucketReader, StagedPayload
from holdfast.stores.objects.sheets import Busy
from holdfast.stores.objects.watch import Watch
from holdfast.stores.room import LOW_DISK_BYTES, DiskRoom
from holdfast.telemetry.figures import Figures

T = TypeVar("T")

# Payloads of more bytes come and go bit by bit.
STREAMS_ABOVE = 1 << 20
# By how much the clocks of processes that share a bucket may differ: a lease that another granted is taken to have run
# out only this much later.
CLOCK_SKEW_MS = 1_000


class ObjectStore:
    def __init__(
        self,
        bucket: Bucket,
        dice: Dice,
        *,
        journal_retention_ms: int,
        clock_skew_ms: int = CLOCK_SKEW_MS,
        measures_skew: bool | None = None,
        watches: bool = True,
        poll_ms: int = 3_000,
        low_disk_bytes: int = LOW_DISK_BYTES,
    ) -> None:
        """`watches`: a directory is watched for what other processes put there, where the system can do that.

        `measures_skew`: the clock is compared with the bucket's time. By default only the system's clock is: the clock
        of a test shows another time.
        """
        self._watch = Watch(bucket.root, poll_ms) if watches and isinstance(bucket, DiskBucket) else None
        self.capabilities = Capabilities(
            claims_inline=False,
            is_durable=True,
            # Where a queue's watch fails, it is the watch that polls.
            pushes_wakeups=self._watch is not None,
            streams_above=STREAMS_ABOVE,
        )
        self._bucket = bucket
        self._dice = dice
        self._retention_ms = journal_retention_ms
        self._skew_ms = clock_skew_ms
        self._measures_skew = measures_skew
        self._parts: Parts | None = None
        self._tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)
        self._staged: dict[int, StagedPayload] = {}
        self._link: Link | None = None
        self._low_disk_bytes = low_disk_bytes
        # Only a directory can run out of room; a bucket in a cloud does not.
        self._room: DiskRoom | None = None

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._listener = listener
        self._runtime = runtime
        self._link = Link(runtime, "holdfast-objects")
        parts = self._parts = Parts(
            self._bucket,
            runtime.clock,
            self._dice,
            holder=uuid4().hex,
            retention_ms=self._retention_ms,
            skew_ms=self._skew_ms,
            measures_skew=(
                isinstance(runtime.clock, SystemClock) if self._measures_skew is None else self._measures_skew
            ),
            streams_above=STREAMS_ABOVE,
        )

        async def begin() -> None:
            try:
                await self._bucket.open()
            except Unanswered as error:
                raise StoreUnavailable(f"{self._bucket.url} cannot be opened: {error}") from None
            await parts.nodes.lease()

        try:
            await self._link.call(begin())
        except BaseException:
            await self._close()
            raise
        if isinstance(self._bucket, DiskBucket):
            self._room = DiskRoom(self._bucket.root, runtime, self._low_disk_bytes)
        self._link.background(parts.nodes.keep())
        self._link.background(parts.tidying.run())
        if self._watch is not None:
            self._link.background(self._watch.run(self._hear))
        listener.deadline(runtime.clock.now_ms())

    async def close(self) -> None:
        if self._link is not None:
            await self._close()

    async def _close(self) -> None:
        async def last() -> None:
            if self._parts is not None:
                with suppress(StoreUnavailable):  # then its lease runs out by itself, and others collect its events
                    await self._parts.journal.collect_all()
                    await self._parts.nodes.release()
            await self._bucket.close()

        if self._room is not None:
            self._room.close()
        link, self._link = self._link, None
        assert link is not None
        await link.close(last())

    def shard_of(self, ref: QueueRef) -> int:
        """Each queue is its own: no claim waits for another queue's listing."""
        return hash(ref) & 0xFF

    # --- Calls and what they lead to ---------------------------------------------------------------------------

    @property
    def _do(self) -> Parts:
        assert self._parts is not None
        return self._parts

    async def _call(self, make: Callable[[Parts], Coroutine[Any, Any, T]]) -> T:
        """What changes nothing."""
        if self._link is None or self._parts is None:
            raise StoreUnavailable("this queue was closed: open it again")
        return await self._link.call(_named(make(self._parts)))

    async def _change(self, make: Callable[[Parts, Notices], Coroutine[Any, Any, T]]) -> T:
        """What changes something, and is told: even of a call that failed, for part of it may hold."""
        if self._link is None or self._parts is None:
            raise StoreUnavailable("this queue was closed: open it again")
        notices, parts, link = Notices(), self._parts, self._link

        async def work() -> T:
            try:
                return await _named(make(parts, notices))
            except BaseException:
                link.enter(lambda: self._tell_failed(notices))
                raise
            finally:
                if notices.tallies:
                    parts.tidying.wake()

        return await self._link.call(work(), lambda _: self._tell(notices))

    def _tell(self, notices: Notices) -> None:
        for ref, counted in notices.tallies.items():
            self._tallies[ref] += counted
        for ref, at_ms in notices.ready_at.items():
            self._listener.ready(ref, at_ms)
        if notices.deadline_at is not None:
            self._listener.deadline(notices.deadline_at)
        if notices.scheduled_at is not None:
            self._listener.scheduled(notices.scheduled_at)

    def _tell_failed(self, notices: Notices) -> None:
        """The call may have failed because the disk is full: then that is logged, also where nobody enqueues."""
        self._tell(notices)
        self._refusal()

    def _refusal(self) -> str | None:
        return None if self._room is None else self._room.refusal(self._runtime.clock.now_ms())

    def _check_room(self, added_bytes: int) -> None:
        if self._room is not None:
            self._room.check(self._runtime.clock.now_ms(), added_bytes)

    def _hear(self, refs: list[QueueRef], now_too: bool) -> None:
        """From the watch, on the bucket's loop: somebody wrote into these queues. Those that nobody waits for any more
        are let go."""

        def tell() -> None:
            now_ms = self._runtime.clock.now_ms()
            for ref in refs:
                if self._listener.is_waited_for(ref):
                    if now_too:
                        self._listener.ready(ref, now_ms)
                elif self._watch is not None and self._link is not None:
                    self._link.post(partial(self._watch.leave, ref))

        if self._link is not None:
            self._link.enter(tell)

    # --- The directory -----------------------------------------------------------------------------------------

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        return await self._call(lambda do: do.directory.tenant(tenant))

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        return await self._call(lambda do: do.directory.find(ref, fresh=True))

    async def list_tenants(self) -> list[TenantRow]:
        return await self._call(lambda do: do.directory.tenants())

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return await self._call(lambda do: do.directory.list_queues(tenant))

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        return await self._call(lambda do: do.directory.put_tenant(tenant, config))

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        return await self._call(lambda do: do.directory.create(ref))

    async def put_policy(self, ref: QueueRef, policy: QueuePolicy, now_ms: int) -> QueueRow:
        return await self._change_row(ref, lambda paper: replace(paper, policy=policy), now_ms)

    async def pause(self, ref: QueueRef, is_paused: bool, now_ms: int) -> QueueRow:
        return await self._change_row(ref, lambda paper: replace(paper, is_paused=is_paused), now_ms)

    async def drain(self, ref: QueueRef, until_ms: int, now_ms: int) -> QueueRow:
        row = await self._change_row(ref, lambda paper: replace(paper, drain_until=until_ms), now_ms)
        await self._call(lambda do: do.timetable.delete_all(ref))
        return row

    async def _change_row(self, ref: QueueRef, change: Callable[[QueuePaper], QueuePaper], now_ms: int) -> QueueRow:
        async def work(do: Parts, notices: Notices) -> QueueRow:
            row = await do.directory.change(ref, change)
            notices.ready(ref, now_ms)
            if row.drain_until is not None:
                do.shelves.of(ref)
                notices.deadline(now_ms)
            return row

        return await self._change(work)

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        self._check_room(sum(draft.bytes for draft in drafts))
        staged = [
            self._staged.pop(draft.pieces.place)
            for draft in drafts
            if draft.pieces is not None and draft.pieces.place in self._staged
        ]
        try:
            answers = await self._change(
                lambda do, notices: do.intake.enqueue(ref, drafts, now_ms, notices, auto_create=auto_create)
            )
        except StoreUnavailable:
            for each in staged:
                each.is_taken = True  # whether it is a message's is not known: if not, a sweep finds it
            raise
        made = {answer.snowflake for answer in answers if not answer.duplicate}
        for each in staged:
            each.is_taken = each.place in made
        return answers

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> PayloadWriter:
        link = self._link
        if link is None:
            raise StoreUnavailable("this queue was closed: open it again")
        self._check_room(draft.bytes)
        staged = await self._call(lambda do: do.payloads.stage(link, ref, draft, now_ms, auto_create=auto_create))
        staged.check_room = self._check_room
        self._staged[staged.place] = staged
        return staged

    async def read_payload(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PayloadReader:
        if self._link is None:
            raise StoreUnavailable("this queue was closed: open it again")
        return BucketReader(self._do.messages, self._link, ref, id, pieces, start)

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        async def claim(do: Parts, notices: Notices) -> Claims:
            do.skew.check()
            if self._watch is not None:
                self._watch.join(ref)  # before it looks: later messages are reported
            return await do.claiming.claim(ref, asks, now_ms, notices)

        return await self._change(claim)

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        if not verdicts:
            return []
        return await self._change(lambda do, notices: do.settling.settle(ref, verdicts, now_ms, notices))

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        return await self._call(lambda do: do.states.save(ref, receipt, change, now_ms))

    # --- Inspection --------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        async def get(do: Parts) -> Found | None:
            await do.directory.require(ref)
            return await do.reading.get(ref, id, self._runtime.clock.now_ms())

        return await self._call(get)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        async def peek(do: Parts) -> list[Found]:
            await do.directory.require(ref)
            return await do.reading.peek(ref, limit, now_ms)

        return await self._call(peek)

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        async def browse(do: Parts) -> Listing:
            await do.directory.require(ref)
            return await do.reading.browse(ref, state, which, after, limit, now_ms)

        return await self._call(browse)

    async def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        async def count(do: Parts) -> Counts:
            await do.directory.require(ref)
            return await do.counting.counts(ref, now_ms)

        return await self._call(count)

    async def tenant_counts(self, tenant: str, now_ms: int) -> Counts:
        return await self._call(lambda do: do.counting.tenant_counts(tenant, now_ms))

    # --- Operators ---------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        return await self._change(
            lambda do, notices: do.altering.alter(ref, verb, which, after, limit, now_ms, notices)
        )

    # --- The claim ledger --------------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        async def read(do: Parts) -> list[LedgerEntry]:
            await do.directory.require(ref)
            return await do.ledgers.entries(ref, consumer, now_ms, number)

        return await self._call(read)

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        async def ack(do: Parts, notices: Notices) -> list[Result]:
            await do.directory.require(ref)
            body, _ = await do.ledgers.read(ref, consumer)
            receipts = [each for number in sorted(body.open) if number <= upto for each in receipts_of(body, number)]
            verdicts = [Verdict(settle=Settle.ACK, receipt=receipt) for receipt in receipts]
            results = await do.settling.settle(ref, verdicts, now_ms, notices)
            _check_written(results, "acked: they stay open, ack them again")
            await do.ledgers.close(ref, consumer, upto)
            return results

        return await self._change(ack)

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        async def extend(do: Parts, notices: Notices) -> list[Result]:
            await do.directory.require(ref)
            body, _ = await do.ledgers.read(ref, consumer)
            receipts = [each for number in sorted(body.open) for each in receipts_of(body, number)]
            verdicts = [Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms) for receipt in receipts]
            results = await do.settling.settle(ref, verdicts, now_ms, notices)
            _check_written(results, "extended: extend them again")
            return results

        return await self._change(extend)

    # --- Schedules ---------------------------------------------------------------------------------------------

    async def find_schedule(self, ref: QueueRef, name: str) -> Schedule | None:
        return await self._call(lambda do: do.timetable.find(ref, name))

    async def list_schedules(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        return await self._call(lambda do: do.timetable.page(ref, after, limit))

    async def put_schedule(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        return await self._change(lambda do, notices: do.timetable.put(ref, was, schedule, notices))

    async def fire_schedule(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        self._check_room(len(schedule.message.payload))
        return await self._change(lambda do, notices: do.timetable.fire(ref, schedule, tick, now_ms, notices))

    async def delete_schedule(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        return await self._call(lambda do: do.timetable.delete(ref, name))

    async def due_schedules(self, limit: int, now_ms: int) -> DueSchedules:
        return await self._call(lambda do: do.timetable.due(limit, now_ms))

    # --- Upkeep ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        async def sweep(do: Parts, notices: Notices) -> Swept:
            do.skew.check()  # it would end live leases of other processes
            return await do.sweeping.sweep(limit, now_ms, notices)

        return await self._change(sweep)

    async def backup(self, target: str) -> None:
        raise InvalidArgument(
            "an object store is backed up by the bucket's own means: versions, replication, or a copy of the directory",
            field="url",
        )

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        async def read(do: Parts) -> JournalPage:
            oldest_at = now_ms - self._retention_ms + 1
            if tenant is not None:
                own_ms = (await do.directory.config(tenant)).journal_retention_ms
                oldest_at = oldest_at if own_ms is None else max(oldest_at, now_ms - own_ms)
            return await do.journal.read(after, limit, tenant, oldest_at, until)

        return await self._call(read)

    # --- Figures -----------------------------------------------------------------------------------------------

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        taken, self._tallies = self._tallies, defaultdict(Counter)
        return taken

    async def figures(self) -> Figures:
        if self._parts is None or self._link is None:
            return Figures(is_up=False, writes=0)
        skew, room = self._parts.skew, self._room
        return Figures(
            writes=self._parts.messages.sheets.writes,
            clock_skew_s=skew.skew_ms / 1_000 if skew.is_measured else None,
            free_bytes=None if room is None else room.free_bytes(),
            refusal=None if room is None else self._refusal(),
            refusals=None if room is None else room.refusals,
        )


def _check_written(results: list[Result], what: str) -> None:
    """Raise `StoreUnavailable` if a verdict on a ledger's claims was not written: the call is repeated as a whole."""
    if any(result.is_retryable for result in results):
        raise StoreUnavailable(f"not all of the claims could be {what}")


async def _named(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Raise `StoreUnavailable` for a conflict or a failed request that escaped it: callers
    and background loops expect errors of the contract alone."""
    try:
        return await work
    except (Changed, Busy) as error:
        raise StoreUnavailable(f"another process changed the same documents; try again ({error})") from error
    except (Missing, Unanswered) as error:
        raise StoreUnavailable(f"the bucket failed in the middle of a call; try again ({error})") from error
