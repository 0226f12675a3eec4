"""The part of the PostgreSQL store that the fast path uses, beyond the contract."""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from holdfast.clock import steady_s
from holdfast.model.events import Event
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.event_loop.link import LoopBridge
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.formats.logged_enqueue import LoggedCall
from holdfast.stores.logic.quotas import check_quotas
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.landing.land import Landed, LogShard, landed_numbers
from holdfast.stores.postgres.landing.owners import land_on_owners
from holdfast.stores.postgres.operations.claims import PostgresClaims
from holdfast.stores.postgres.payloads.pieces import PostgresPayloads, is_filled
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.reserved_message import Reserved
from holdfast.stores.values import Claims

T = TypeVar("T")

# How long this server's knowledge of a queue and of a database's clock is used without asking again.
_FRESH_S = 5.0
# A clock that goes back by more than this was set back. Within it, times of messages do not go back.
_STEP_BACK_MS = 1_000
_NOW = "SELECT now_ms(NULL) AS now"
_REMEMBERED = 50_000


class Admitted(NamedTuple):
    """A queue that takes messages, as far as this server knows."""

    shard: int
    queue_id: int
    default_ttl_ms: int | None


class PostgresBufferTarget:
    """The store as `stores.buffered.fast_path.BufferTarget` describes it. All methods but `call` run on the driver's
    loop."""

    def __init__(
        self,
        cluster: PostgresCluster,
        directory: QueueRegistry,
        claims: PostgresClaims,
        payloads: PostgresPayloads,
        nodes: PostgresNodeNumbers,
        link: LoopBridge,
        publish: Callable[[Notices], None],
        notify: Callable[[Notices], None],
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._claims = claims
        self._payloads = payloads
        self._nodes = nodes
        self._link = link
        self._publish = publish
        self._notify = notify
        # When each queue was last seen to be as it is remembered, in steady seconds.
        self._seen_s: dict[QueueRef, float] = {}
        # What each database's clock said, and when this server read it (steady seconds). A time derived from the two
        # is never ahead of the database's clock.
        self._clocks: dict[int, tuple[int, float]] = {}
        self._last_ms: dict[int, int] = {}

    # --- Between event loops -------------------------------------------------------------------------------------

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the driver's loop and return its result."""
        return await self._link.call(work)

    def post(self, callback: Callable[[], None]) -> None:
        """Call back on the driver's loop, soon."""
        self._link.post(callback)

    def enter(self, callback: Callable[[], None]) -> None:
        """From the driver's loop: run a step of the runtime."""
        self._link.enter(callback)

    # --- Enqueueing --------------------------------------------------------------------------------------------

    def shard_count(self) -> int:
        """Return the number of databases."""
        return len(self._cluster.shards)

    def shard_of(self, ref: QueueRef) -> int:
        """Return the number of the database that owns the queue."""
        return self._cluster.number_of(ref)

    def admit(self, ref: QueueRef, drafts: list[Draft]) -> Admitted | None:
        """Return what a logged call needs to know of its queue, or None if the database must decide. Raise
        `PayloadTooLarge`."""
        info = self._directory.remembered(ref)
        if info is None or not _is_simple(info) or not info.shard.is_up:
            return None
        check_quotas(ref.tenant, info.config.quotas, 0, 0, [draft.bytes for draft in drafts])
        return Admitted(info.shard.number, info.row.queue_id, info.default_ttl_ms)

    def is_known(self, ref: QueueRef) -> bool:
        """Return whether the queue and its database's clock were read within the last few seconds."""
        seen_s = self._seen_s.get(ref)
        _, read_s = self._clocks.get(self.shard_of(ref), (0, -_FRESH_S))
        is_fresh = seen_s is not None and steady_s() - min(seen_s, read_s) < _FRESH_S
        return is_fresh and self._directory.remembered(ref) is not None

    async def refresh(self, ref: QueueRef) -> None:
        """Read the queue and the database's clock, if the queue exists."""
        if await self._directory.load(ref) is not None:
            [row] = await self._cluster.shard_of(ref).fetch(_NOW)
            self._clocks[self.shard_of(ref)] = row["now"], steady_s()
            self._note(ref)

    async def confirm_node(self) -> None:
        """Make sure that this server may make new message ids. Raise `StoreUnavailable` if it may not."""
        await self._nodes.confirm()

    def take_ids(self, number: int, stored_ms: int) -> list[int]:
        """Return new message ids."""
        return self._nodes.take_ids(number, stored_ms)

    def stored_ms(self, shard: int, now_ms: int) -> int:
        """Return the time `now_ms` by the clock of the database. A queue of it must be known."""
        given = self._cluster.time_argument(now_ms)
        if given is not None:
            return given
        database_ms, read_s = self._clocks[shard]
        at_ms, last_ms = database_ms + int((steady_s() - read_s) * 1_000), self._last_ms.get(shard, 0)
        if last_ms - _STEP_BACK_MS < at_ms < last_ms:
            at_ms = last_ms  # otherwise the order of messages would change
        self._last_ms[shard] = at_ms
        return at_ms

    def notify(self, ready: dict[QueueRef, int]) -> None:
        """Tell the other servers from when on these queues have messages, though these have not landed."""
        notices = Notices()
        for ref, at_ms in ready.items():
            notices.ready(ref, at_ms)
        self._notify(notices)

    # --- Reserving ---------------------------------------------------------------------------------------------

    async def reserve(self, ref: QueueRef, number: int, behind: Reserved | None, now_ms: int) -> list[Reserved]:
        """Return the messages that claims would take next, after `behind`."""
        return await self._claims.reserve(ref, number, behind, now_ms)

    async def claim_reserved(
        self, ref: QueueRef, asks: list[ClaimRequest], mine: list[Reserved], others: list[Reserved], now_ms: int
    ) -> Claims | None:
        """Claim reserved messages as `PostgresClaims.claim_reserved` does, and publish the notices."""
        notices = Notices()
        claims = await self._claims.claim_reserved(ref, asks, mine, others, now_ms, notices)
        self._publish(notices)
        return claims if claims is None or is_filled(asks, claims) else await self._payloads.fill(ref, asks, claims)

    # --- Landing -----------------------------------------------------------------------------------------------

    async def land(
        self,
        node: UUID,
        epoch: int,
        shard: int,
        calls: list[tuple[int, LoggedCall]],
        span: range | None,
        now_ms: int,
    ) -> int:
        """Land calls on their owners and publish the notices. Return the number of stored messages."""
        given_now = self._cluster.time_argument(now_ms)
        log_shard = LogShard(node, epoch, shard)
        every = await land_on_owners(self._cluster, log_shard, calls, span=span, given_now=given_now)
        for landed in every:
            self._report(landed)
        return sum(queue.stored for landed in every for queue in landed.queues)

    def _report(self, landed: Landed) -> None:
        notices = Notices()
        for queue in landed.queues:
            notices.tally(queue.ref, Event.ENQUEUED, queue.stored)
            if not queue.is_paused:
                notices.ready(queue.ref, queue.visible_at)
            if queue.expires_at is not None:
                notices.deadline(queue.expires_at)
        for ref, number in landed.dropped.items():
            self._directory.forget(ref)
            notices.tally(ref, Event.ENQUEUED, number)
            notices.tally(ref, Event.REMOVED, number)
        for ref, revisions in landed.revisions.items():
            known = self._directory.remembered(ref)
            if known is not None and (known.revision, known.tenant_revision) == revisions:
                self._note(ref)
            else:
                self._directory.forget(ref)
        self._publish(notices)

    async def landed(self, node: UUID, epoch: int, shard: int) -> list[range]:
        """Return the record numbers that are stored, by whichever server."""
        log_shard = LogShard(node, epoch, shard)
        return await self._cluster.shards[shard].use(lambda connection: landed_numbers(connection, log_shard))

    def _note(self, ref: QueueRef) -> None:
        if len(self._seen_s) >= _REMEMBERED:
            self._seen_s.pop(next(iter(self._seen_s)))
        self._seen_s[ref] = steady_s()


def _is_simple(info: QueueInfo) -> bool:
    """Return whether new messages of the queue need no decision together with stored messages."""
    return info.row.drain_until is None and not info.has_quotas
