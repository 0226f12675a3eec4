"""The object store: the store contract over a bucket."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from uuid import uuid4

from holdfast.clock import SystemClock
from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found, Result, Saved
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Filter, StateChange, Verb, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import Listener
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
from holdfast.stores.values import AlterStep, Capabilities, Claims, JournalPage, Listing, Swept
from holdfast.telemetry.figures import Figures

# Payloads above this size in bytes are streamed.
STREAMS_ABOVE = 1 << 20
# Allowed difference between the clocks of processes that share a bucket. A lease granted by another process counts as
# ended this much later.
CLOCK_SKEW_MS = 1_000


class ObjectStore:
    """A store over a directory or a bucket, shared by any number of processes."""

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
        """Create a closed store over a bucket.

        `watches` lets inotify watch a directory for messages of other processes, where the system supports that; queues
        that cannot be watched are polled every `poll_ms`. `measures_skew` compares the clock with the bucket's time; by
        default only the system clock is compared, since a test's clock shows another time. Enqueues are refused while
        the disk has less than `low_disk_bytes` free.
        """
        self._watch = DirectoryWatch(bucket.root, poll_ms) if watches and isinstance(bucket, DiskBucket) else None
        self.capabilities = Capabilities(
            claims_inline=False,
            is_durable=True,
            # The watch polls the queues that it cannot watch.
            pushes_wakeups=self._watch is not None,
            streams_above=STREAMS_ABOVE,
        )
        self._bucket = bucket
        self._dice = dice
        self._retention_ms = journal_retention_ms
        self._skew_ms = clock_skew_ms
        self._measures_skew = measures_skew
        self._parts: ObjectParts | None = None
        self._driver = ObjectDriver(self._log_refusal, self._wake_follow_up)
        self._low_disk_bytes = low_disk_bytes
        # Only a directory can run out of space.
        self._disk: DiskRoom | None = None

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
            check_disk_space=self._check_disk_space,
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
            self._disk = DiskRoom(self._bucket.root, runtime, self._low_disk_bytes)
        link.background(parts.nodes.run())
        link.background(parts.follow_up.run())
        if self._watch is not None:
            link.background(self._watch.run(self._on_directory_change, runtime.clock))
        listener.deadline(runtime.clock.now_ms())

    async def close(self) -> None:
        if self._driver.is_open:
            await self._close()

    async def _close(self) -> None:
        async def last() -> None:
            if self._parts is not None:
                with suppress(
                    StoreUnavailable
                ):  # the lease then ends by itself, and other processes collect the events
                    await self._parts.journal.collect_all()
                    await self._parts.nodes.release()
            await self._bucket.close()

        if self._disk is not None:
            self._disk.close()
        await self._driver.close(last())

    def shard_of(self, ref: QueueRef) -> int:
        """Return a number for the queue. Queues share no shard on purpose: no claim has to wait for another queue's
        listing."""
        return hash(ref) & 0xFF

    # --- Callbacks ---------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> ObjectParts:
        """Return the components. Raise `StoreUnavailable` if the store is closed."""
        if self._parts is None:
            raise StoreUnavailable("this store is closed; open it again")
        return self._parts

    def _log_refusal(self) -> None:
        """Log a full disk after a failed call, even if no caller enqueues."""
        self._refusal()

    def _wake_follow_up(self) -> None:
        self._opened.follow_up.wake()

    def _refusal(self) -> str | None:
        return None if self._disk is None else self._disk.refusal(self._runtime.clock.now_ms())

    def _check_disk_space(self, added_bytes: int) -> None:
        if self._disk is not None:
            self._disk.check(self._runtime.clock.now_ms(), added_bytes)

    def _on_directory_change(self, refs: list[QueueRef], has_news: bool) -> None:
        """Handle a report of the watch, on the bucket's loop: wake the waiters if there is news, and unwatch queues
        without waiters."""

        def notify() -> None:
            now_ms = self._runtime.clock.now_ms()
            for ref in refs:
                if self._driver.listener.is_waited_for(ref):
                    if has_news:
                        self._driver.listener.ready(ref, now_ms)
                elif self._watch is not None and self._driver.link is not None and self._driver.is_open:
                    self._driver.link.post(partial(self._watch.unwatch, ref))

        self._driver.enter(notify)

    # --- Parts -------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> ObjectDirectory:
        return self._opened.directory

    @property
    def schedules(self) -> ObjectSchedules:
        return self._opened.schedules

    @property
    def ledgers(self) -> ObjectLedgers:
        return self._opened.ledgers

    @property
    def payloads(self) -> ObjectPayloads:
        return self._opened.payloads

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        self._check_disk_space(sum(draft.bytes for draft in drafts))
        parts = self._opened
        staged = parts.payloads.take(drafts)
        try:
            answers = await self._driver.change(
                lambda notices: parts.enqueue.enqueue(ref, drafts, now_ms, notices, auto_create=auto_create)
            )
        except StoreUnavailable:
            for each in staged:
                each.is_taken = True  # unknown whether the message exists; a sweep deletes the payload if not
            raise
        made = {answer.snowflake for answer in answers if not answer.duplicate}
        for each in staged:
            each.is_taken = each.blob_id in made
        return answers

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        parts = self._opened

        async def claim(notices: Notices) -> Claims:
            parts.skew.check()
            if self._watch is not None:
                self._watch.watch(ref)  # before the claim looks, so that later messages are reported
            return await parts.claims.claim(ref, asks, now_ms, notices)

        return await self._driver.change(claim)

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        if not verdicts:
            return []
        parts = self._opened
        return await self._driver.change(lambda notices: parts.verdicts.settle(ref, verdicts, now_ms, notices))

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> Saved:
        parts = self._opened
        return await self._driver.call(lambda: parts.states.save(ref, receipt, change, now_ms))

    # --- Inspection --------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        parts = self._opened

        async def get() -> Found | None:
            await parts.directory.require(ref)
            return await parts.inspection.get(ref, id, self._runtime.clock.now_ms())

        return await self._driver.call(get)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        parts = self._opened

        async def peek() -> list[Found]:
            await parts.directory.require(ref)
            return await parts.inspection.peek(ref, limit, now_ms)

        return await self._driver.call(peek)

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        parts = self._opened

        async def browse() -> Listing:
            await parts.directory.require(ref)
            return await parts.inspection.browse(ref, state, which, after, limit, now_ms)

        return await self._driver.call(browse)

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        parts = self._opened

        async def count() -> Counts:
            if queue is None:
                return await parts.queue_counts.tenant_counts(tenant, now_ms)
            ref = QueueRef(tenant, queue)
            await parts.directory.require(ref)
            return await parts.queue_counts.counts(ref, now_ms)

        return await self._driver.call(count)

    # --- Operators ---------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        parts = self._opened
        return await self._driver.change(
            lambda notices: parts.bulk.alter(ref, verb, which, after, limit, now_ms, notices)
        )

    # --- Maintenance -------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        parts = self._opened

        async def sweep(notices: Notices) -> Swept:
            parts.skew.check()  # a wrong clock would end live leases of other processes
            return await parts.sweep.sweep(limit, now_ms, notices)

        return await self._driver.change(sweep)

    async def backup(self, target: str) -> None:
        raise InvalidArgument(
            "an object store has no backup command; use the bucket's versions or replication, or copy the directory",
            field="url",
        )

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        parts = self._opened

        async def read() -> JournalPage:
            oldest_at = now_ms - self._retention_ms + 1
            if tenant is not None:
                own_ms = (await parts.directory.config(tenant)).journal_retention_ms
                oldest_at = oldest_at if own_ms is None else max(oldest_at, now_ms - own_ms)
            return await parts.journal.read(after, limit, tenant, oldest_at, until)

        return await self._driver.call(read)

    # --- Figures -----------------------------------------------------------------------------------------------

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        return await self._driver.take_tallies()

    async def figures(self) -> Figures:
        if self._parts is None or not self._driver.is_open:
            return Figures(is_up=False, writes=0)
        skew, room = self._parts.skew, self._disk
        return Figures(
            writes=self._parts.messages.documents.writes,
            clock_skew_s=skew.skew_ms / 1_000 if skew.is_measured else None,
            free_bytes=None if room is None else room.free_bytes(),
            refusal=None if room is None else self._refusal(),
            refusals=None if room is None else room.refusals,
        )
