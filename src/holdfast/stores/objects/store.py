"""The object store: the contract over a bucket."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from uuid import uuid4

from holdfast.clock import SystemClock
from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found, Result
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Filter, StateChange, Verb, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import (
    AlterStep,
    Capabilities,
    Claims,
    JournalPage,
    Listener,
    Listing,
    Swept,
)
from holdfast.stores.disk.free_space import LOW_DISK_BYTES, DiskRoom
from holdfast.stores.event_loop.link import LoopBridge
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import Bucket, Unanswered
from holdfast.stores.objects.buckets.directory_watch import DirectoryWatch
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.objects.components import ObjectParts
from holdfast.stores.objects.driver import ObjectDriver
from holdfast.stores.objects.messages.payloads import ObjectPayloads
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.ledgers import ObjectLedgers
from holdfast.stores.objects.operations.schedules import ObjectSchedules
from holdfast.telemetry.figures import Figures

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
        self._watch = DirectoryWatch(bucket.root, poll_ms) if watches and isinstance(bucket, DiskBucket) else None
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
        self._parts: ObjectParts | None = None
        self._driver = ObjectDriver(self._log_refusal, self._wake_tidying)
        self._low_disk_bytes = low_disk_bytes
        # Only a directory can run out of room; a bucket in a cloud does not.
        self._room: DiskRoom | None = None

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._driver.listener = listener
        self._runtime = runtime
        link = LoopBridge(runtime, "holdfast-objects")
        self._driver.open(link)
        parts = self._parts = ObjectParts(
            self._driver,
            self._bucket,
            runtime.clock,
            self._dice,
            check_room=self._check_room,
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
            await link.call(begin())
        except BaseException:
            await self._close()
            raise
        if isinstance(self._bucket, DiskBucket):
            self._room = DiskRoom(self._bucket.root, runtime, self._low_disk_bytes)
        link.background(parts.nodes.keep())
        link.background(parts.tidying.run())
        if self._watch is not None:
            link.background(self._watch.run(self._hear, runtime.clock))
        listener.deadline(runtime.clock.now_ms())

    async def close(self) -> None:
        if self._driver.is_open:
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
        await self._driver.close(last())

    def shard_of(self, ref: QueueRef) -> int:
        """Each queue is its own: no claim waits for another queue's listing."""
        return hash(ref) & 0xFF

    # --- Calls and what they lead to ---------------------------------------------------------------------------

    @property
    def _do(self) -> ObjectParts:
        if self._parts is None:
            raise StoreUnavailable("this queue was closed: open it again")
        return self._parts

    def _log_refusal(self) -> None:
        """A call may have failed because the disk is full: log that, even if no caller enqueues."""
        self._refusal()

    def _wake_tidying(self) -> None:
        self._do.tidying.wake()

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
                if self._driver.listener.is_waited_for(ref):
                    if now_too:
                        self._driver.listener.ready(ref, now_ms)
                elif self._watch is not None and self._driver.link is not None and self._driver.is_open:
                    self._driver.link.post(partial(self._watch.leave, ref))

        self._driver.enter(tell)

    # --- Parts -------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> ObjectDirectory:
        return self._do.directory

    @property
    def schedules(self) -> ObjectSchedules:
        return self._do.timetable

    @property
    def ledgers(self) -> ObjectLedgers:
        return self._do.ledgers

    @property
    def payloads(self) -> ObjectPayloads:
        return self._do.payloads

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        self._check_room(sum(draft.bytes for draft in drafts))
        do = self._do
        staged = do.payloads.take(drafts)
        try:
            answers = await self._driver.change(
                lambda notices: do.intake.enqueue(ref, drafts, now_ms, notices, auto_create=auto_create)
            )
        except StoreUnavailable:
            for each in staged:
                each.is_taken = True  # whether it is a message's is not known: if not, a sweep finds it
            raise
        made = {answer.snowflake for answer in answers if not answer.duplicate}
        for each in staged:
            each.is_taken = each.place in made
        return answers

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        do = self._do

        async def claim(notices: Notices) -> Claims:
            do.skew.check()
            if self._watch is not None:
                self._watch.join(ref)  # before it looks: later messages are reported
            return await do.claiming.claim(ref, asks, now_ms, notices)

        return await self._driver.change(claim)

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        if not verdicts:
            return []
        do = self._do
        return await self._driver.change(lambda notices: do.settling.settle(ref, verdicts, now_ms, notices))

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        do = self._do
        return await self._driver.call(lambda: do.states.save(ref, receipt, change, now_ms))

    # --- Inspection --------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        do = self._do

        async def get() -> Found | None:
            await do.directory.require(ref)
            return await do.reading.get(ref, id, self._runtime.clock.now_ms())

        return await self._driver.call(get)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        do = self._do

        async def peek() -> list[Found]:
            await do.directory.require(ref)
            return await do.reading.peek(ref, limit, now_ms)

        return await self._driver.call(peek)

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        do = self._do

        async def browse() -> Listing:
            await do.directory.require(ref)
            return await do.reading.browse(ref, state, which, after, limit, now_ms)

        return await self._driver.call(browse)

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        do = self._do

        async def count() -> Counts:
            if queue is None:
                return await do.counting.tenant_counts(tenant, now_ms)
            ref = QueueRef(tenant, queue)
            await do.directory.require(ref)
            return await do.counting.counts(ref, now_ms)

        return await self._driver.call(count)

    # --- Operators ---------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        do = self._do
        return await self._driver.change(
            lambda notices: do.altering.alter(ref, verb, which, after, limit, now_ms, notices)
        )

    # --- Upkeep ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        do = self._do

        async def sweep(notices: Notices) -> Swept:
            do.skew.check()  # it would end live leases of other processes
            return await do.sweeping.sweep(limit, now_ms, notices)

        return await self._driver.change(sweep)

    async def backup(self, target: str) -> None:
        raise InvalidArgument(
            "an object store is backed up by the bucket's own means: versions, replication, or a copy of the directory",
            field="url",
        )

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        do = self._do

        async def read() -> JournalPage:
            oldest_at = now_ms - self._retention_ms + 1
            if tenant is not None:
                own_ms = (await do.directory.config(tenant)).journal_retention_ms
                oldest_at = oldest_at if own_ms is None else max(oldest_at, now_ms - own_ms)
            return await do.journal.read(after, limit, tenant, oldest_at, until)

        return await self._driver.call(read)

    # --- Figures -----------------------------------------------------------------------------------------------

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        return await self._driver.take_tallies()

    async def figures(self) -> Figures:
        if self._parts is None or not self._driver.is_open:
            return Figures(is_up=False, writes=0)
        skew, room = self._parts.skew, self._room
        return Figures(
            writes=self._parts.messages.sheets.writes,
            clock_skew_s=skew.skew_ms / 1_000 if skew.is_measured else None,
            free_bytes=None if room is None else room.free_bytes(),
            refusal=None if room is None else self._refusal(),
            refusals=None if room is None else room.refusals,
        )
