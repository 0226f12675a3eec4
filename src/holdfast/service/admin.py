"""AdminService: tenants, queues, policies, backups and bulk verbs."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.model.answers import (
    BulkResult,
    HotQueue,
    NumberedQueue,
    NumberedTenant,
    QueueDetail,
    QueueSummary,
    Removed,
    Stats,
    TenantSummary,
)
from holdfast.model.errors import InvalidArgument, MessageNotFound, StoreUnavailable
from holdfast.model.ids import parse_id, to_uuid
from holdfast.model.message import State, check_size
from holdfast.model.names import DEFAULT, QueueRef
from holdfast.model.parsing.checks import check_integer, check_rate
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.policy import QueuePolicy, TenantConfig, merge
from holdfast.model.requests import (
    EVERYTHING,
    STEP,
    Cancel,
    Filter,
    Move,
    Purge,
    Redrive,
    Remove,
    Reprioritise,
    Verb,
)
from holdfast.runtime import Runtime, shield, sleep_until
from holdfast.service.policy_cache import PolicyCache
from holdfast.service.queue_refs import parse_names
from holdfast.service.views import stats_of
from holdfast.stores.contract import Store
from holdfast.stores.logic.results import being_deleted
from holdfast.stores.values import QueueChange
from holdfast.wire.requests import (
    BackupRequest,
    CancelRequest,
    ConfigureRequest,
    DeleteRequest,
    MoveRequest,
    NamesRequest,
    Nothing,
    PauseRequest,
    PurgeRequest,
    RedriveRequest,
    RemoveRequest,
    ReprioritiseRequest,
)


class AdminService:
    """The operations of operators and administrators."""

    def __init__(
        self, store: Store, dispatcher: Dispatcher, directory: PolicyCache, runtime: Runtime, *, max_payload: int
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._directory = directory
        self._runtime = runtime
        self._now_ms = runtime.clock.now_ms
        self._max_payload = max_payload

    # --- Tenants and queues ----------------------------------------------------------------------------------

    async def tenants(self, ref: QueueRef, request: Nothing) -> list[TenantSummary]:
        """Return all tenants with their configuration."""
        return [
            TenantSummary(tenant=row.tenant, **asdict(row.config)) for row in await self._store.directory.list_tenants()
        ]

    async def names(self, ref: QueueRef, request: NamesRequest) -> list[NumberedTenant]:
        """Return the numbers of all tenants and queues, or of those that the request names, as far as they exist."""
        tenant, queue = parse_names(request, ref.tenant)
        directory = self._store.directory
        if tenant is None:
            rows = await directory.list_tenants()
        else:
            row = await directory.find_tenant(tenant)
            rows = [] if row is None else [row]
        return [
            NumberedTenant(
                tenant=row.tenant, tenant_id=row.tenant_id, queues=await self._numbered_queues(row.tenant, queue)
            )
            for row in rows
        ]

    async def _numbered_queues(self, tenant: str, queue: str | None) -> list[NumberedQueue]:
        if queue is None:
            rows = await self._store.directory.list_queues(tenant)
        else:
            row = await self._store.directory.find_queue(QueueRef(tenant, queue))
            rows = [] if row is None else [row]
        return [NumberedQueue(queue=row.ref.queue, queue_id=row.queue_id) for row in rows]

    async def hot_queues(self, ref: QueueRef, request: Nothing) -> list[HotQueue]:
        """Return the busiest queues of each column family; none for a store without column families."""
        return list((await self._store.figures()).hot)

    async def tenant(self, ref: QueueRef, request: Nothing) -> TenantConfig:
        """Return the configuration of a tenant; an unknown tenant has the default one."""
        row = await self._store.directory.find_tenant(ref.tenant)
        return TenantConfig() if row is None else row.config

    async def set_tenant(self, ref: QueueRef, request: ConfigureRequest) -> TenantConfig:
        """Change the given fields of a tenant's configuration, and return the whole configuration."""
        return await shield(self._runtime, self._set_tenant(ref.tenant, request.changes))

    async def _set_tenant(self, tenant: str, changes: Mapping[str, Any]) -> TenantConfig:
        row_before = await self._store.directory.find_tenant(tenant)
        config = merge(TenantConfig() if row_before is None else row_before.config, changes)
        row = await self._store.directory.put_tenant(tenant, config)
        self._directory.remember_tenant(row)
        return row.config

    async def tenant_stats(self, ref: QueueRef, request: Nothing) -> Stats:
        """Return the sums of the counts of a tenant's queues."""
        tenant, now_ms = ref.tenant, self._now_ms()
        counts = await self._store.counts(tenant, None, now_ms)
        return stats_of(counts, now_ms, waiters=self._dispatcher.count_tenant_waiters(tenant))

    async def queues(self, ref: QueueRef, request: Nothing) -> list[QueueSummary]:
        """Return the queues of a tenant with their stats."""
        now_ms = self._now_ms()
        summaries = []
        for row in await self._store.directory.list_queues(ref.tenant):
            counts = await self._store.counts(*row.ref, now_ms)
            stats = stats_of(counts, now_ms, waiters=self._dispatcher.count_waiters(row.ref), row=row)
            summaries.append(QueueSummary(queue=row.ref.queue, **asdict(stats)))
        return summaries

    async def queue(self, ref: QueueRef, request: Nothing) -> QueueDetail:
        """Return the stats and the policy of a queue. Raise `QueueNotFound`."""
        row = await self._directory.require(ref)
        now_ms = self._now_ms()
        counts = await self._store.counts(*ref, now_ms)
        return QueueDetail(stats_of(counts, now_ms, waiters=self._dispatcher.count_waiters(ref), row=row), row.policy)

    async def policy(self, ref: QueueRef, request: Nothing) -> QueuePolicy:
        """Return the policy of a queue. Raise `QueueNotFound`."""
        return (await self._directory.require(ref)).policy

    async def set_policy(self, ref: QueueRef, request: ConfigureRequest) -> QueuePolicy:
        """Create a queue, or change the given fields of its policy. Return the whole policy."""
        return await shield(self._runtime, self._set_policy(ref, request.changes))

    async def _set_policy(self, ref: QueueRef, changes: Mapping[str, Any]) -> QueuePolicy:
        if await self._store.directory.find_queue(ref) is None:
            merge(QueuePolicy(), changes)  # raises before the queue is created
            row = await self._store.directory.create_queue(ref, self._now_ms())
            if not changes:
                return row.policy
        # Read the policy again, because another caller may have changed it meanwhile.
        policy = merge((await self._directory.require(ref)).policy, changes)
        row = await self._store.directory.change_queue(ref, QueueChange(policy=policy), self._now_ms())
        self._directory.remember_queue(row)
        return row.policy

    async def pause(self, ref: QueueRef, request: PauseRequest) -> None:
        """Stop or resume claims on a queue."""
        await self._store.directory.change_queue(ref, QueueChange(is_paused=request.paused), self._now_ms())

    async def delete(self, ref: QueueRef, request: DeleteRequest) -> None:
        """Begin the deletion of a queue. Sweeps finish it.

        From now on enqueues and claims are refused. Messages in flight can be settled for `force_after_ms`; then their
        leases are revoked.
        """
        check_integer("force_after", request.force_after_ms, 0, MAX_MS)
        await shield(self._runtime, self._delete(ref, request.force_after_ms))

    async def _delete(self, ref: QueueRef, force_after_ms: int) -> None:
        now_ms = self._now_ms()
        change = QueueChange(drain_until=now_ms + force_after_ms)
        self._directory.remember_queue(await self._store.directory.change_queue(ref, change, now_ms))
        self._dispatcher.fail_waiters(ref, being_deleted(ref))

    async def check_store(self) -> list[str]:
        """Return what is wrong although the store takes calls.

        Raise `StoreUnavailable` if the store is closed, stopped, or refuses enqueues because its disk is full.
        """
        await self._store.directory.find_tenant(DEFAULT)
        figures = await self._store.figures()
        if figures.refusal is not None:
            raise StoreUnavailable(figures.refusal)
        return list(figures.problems)

    async def backup(self, ref: QueueRef, request: BackupRequest) -> None:
        """Write a backup of the store to `request.target`."""
        await self._store.backup(request.target)

    # --- Bulk verbs ------------------------------------------------------------------------------------------

    async def purge(self, ref: QueueRef, request: PurgeRequest) -> BulkResult:
        """Remove all ready or all failed messages."""
        _check_ready_or_failed("purge", request.state)
        return await self._apply(ref, Purge(state=request.state), EVERYTHING)

    async def cancel(self, ref: QueueRef, request: CancelRequest) -> BulkResult:
        """Remove the ready messages that match."""
        return await self._apply(ref, Cancel(), request.filter)

    async def reprioritise(self, ref: QueueRef, request: ReprioritiseRequest) -> BulkResult:
        """Give the ready messages that match another priority."""
        check_integer("priority", request.priority, 0, 255)
        return await self._apply(ref, Reprioritise(priority=request.priority), request.filter)

    async def move(self, ref: QueueRef, request: MoveRequest) -> BulkResult:
        """Move the ready or the failed messages that match to another queue."""
        to, state = request.to, request.state
        if to == ref:
            raise InvalidArgument(f"the messages are in {ref} already: give another queue", field="to")
        _check_ready_or_failed("move", state)
        await self._directory.require(ref)
        await self._directory.require_or_create(to)
        return await self._apply(ref, Move(to=to, state=state), request.filter)

    async def remove(self, ref: QueueRef, request: RemoveRequest) -> Removed:
        """Remove one message in any state, and return its correlation id. Raise `MessageNotFound`."""
        snowflake = parse_id(request.id)
        # A message never changes its correlation id, so this needs no step together with the removal.
        found = await self._store.get(ref, snowflake)
        removed = await self._apply(ref, Remove(), Filter(ids=frozenset({snowflake})))
        if not removed.changed:
            raise MessageNotFound(f"queue {ref} has no message {to_uuid(snowflake)}", id=to_uuid(snowflake))
        return Removed(correlation_id=None if found is None else found.envelope.correlation_id)

    async def redrive(self, ref: QueueRef, request: RedriveRequest) -> BulkResult:
        """Make the failed messages that match ready again; with an edit, only the message that it names.

        With `request.dry_run` only count them. With `request.rate_per_s` redrive at most this number per second.
        """
        where, edit, rate_per_s = request.filter, request.edit, request.rate_per_s
        if rate_per_s is not None:
            check_rate("rate_per_s", rate_per_s)
        if edit is not None:
            check_size("payload", len(edit.payload), self._max_payload)
            where = Filter(ids=frozenset({edit.id}))
        if request.dry_run:
            return BulkResult(await self._count(ref, State.FAILED, where), 0)
        if rate_per_s is None:
            return await self._apply(ref, Redrive(edit=edit), where)
        return await self._apply_at_rate(ref, Redrive(edit=edit), where, rate_per_s)

    async def _apply(self, ref: QueueRef, verb: Verb, where: Filter) -> BulkResult:
        """Apply a verb in atomic steps of `STEP` messages.

        Changed messages no longer match, so the call is safe to send again after an error: it continues.
        """
        matched = changed = 0
        after: int | None = None
        while True:
            step = await self._store.alter(ref, verb, where, after, STEP, self._now_ms())
            matched += step.matched
            changed += step.changed
            after = step.after
            if after is None:
                return BulkResult(matched, changed)

    async def _apply_at_rate(self, ref: QueueRef, verb: Verb, where: Filter, rate_per_s: float) -> BulkResult:
        """Apply a verb to at most `rate_per_s` messages per second, in up to ten steps per second."""
        size = max(1, min(STEP, int(rate_per_s / 10)))
        pause_ms = min(size / rate_per_s * 1_000, MAX_MS)
        start_ms = self._now_ms()
        changed, after, steps = 0, None, 0
        while True:
            step = await self._store.alter(ref, verb, where, after, size, self._now_ms())
            changed += step.changed
            after = step.after
            if after is None:
                return BulkResult(changed, changed)
            steps += 1
            await sleep_until(self._runtime, start_ms + int(steps * pause_ms))

    async def _count(self, ref: QueueRef, state: State, where: Filter) -> int:
        """Return the number of messages in a state that match."""
        found, after = 0, None
        while True:
            listing = await self._store.browse(ref, state, where, after, STEP, self._now_ms())
            found += len(listing.found)
            after = listing.after
            if after is None:
                return found


def _check_ready_or_failed(verb: str, state: State) -> None:
    if state not in (State.READY, State.FAILED):
        raise InvalidArgument(f"{verb} takes ready or failed messages, not {state} ones", field="state")
