"""Queues, tenants, policies and the operators' verbs over Cap'n Proto."""

from collections.abc import Mapping
from typing import Any

from holdfast.client.capnp.calls import Request
from holdfast.client.capnp.operating import Operating, changes_in, filter_in
from holdfast.client.capnp.shapes import summary_of, write_ref
from holdfast.model.answers import Changed, QueueSummary, Stats, TenantSummary
from holdfast.model.checks import check_integer, check_rate
from holdfast.model.durations import MAX_MS
from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import parse_id
from holdfast.model.message import State
from holdfast.model.names import DEFAULT, QueueRef, parse_name
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Edit, Filter
from holdfast.model.schedules import Change, ScheduleInfo
from holdfast.wire import operations as wire


class CapnpAdmin(Operating):
    # --- Tenants and queues ------------------------------------------------------------------------------------

    async def tenants(self) -> list[TenantSummary]:
        return await self.operate("tenants", QueueRef(), None, list[TenantSummary])

    async def tenant(self, tenant: str) -> TenantConfig:
        return await self.operate("tenant", QueueRef(tenant, DEFAULT), None, TenantConfig)

    async def set_tenant(self, tenant: str, changes: Mapping[str, Any]) -> TenantConfig:
        return await self.operate_with("set_tenant", QueueRef(tenant, DEFAULT), changes_in(changes), TenantConfig)

    async def tenant_stats(self, tenant: str) -> Stats:
        return await self.operate("tenant_stats", QueueRef(tenant, DEFAULT), None, Stats)

    async def queues(self, tenant: str) -> list[QueueSummary]:
        def fill(request: Any) -> None:
            request.tenant = tenant

        answer = await self.calls.ask(Request("listQueues", fill))
        return [summary_of(each) for each in answer.queues]

    async def policy(self, ref: QueueRef) -> QueuePolicy:
        return await self.operate("policy", ref, None, QueuePolicy)

    async def set_policy(self, ref: QueueRef, changes: Mapping[str, Any]) -> QueuePolicy:
        return await self.operate_with("set_policy", ref, changes_in(changes), QueuePolicy)

    async def pause(self, ref: QueueRef, is_paused: bool) -> None:
        await self.operate("pause", ref, wire.Pause(paused=is_paused), type(None))

    async def delete(self, ref: QueueRef, force_after_ms: int) -> None:
        check_integer("force_after", force_after_ms, 0, MAX_MS)

        def fill(request: Any) -> None:
            write_ref(request, ref)
            request.forceAfterMs = force_after_ms

        # Repeated after no answer it could meet the queue that was made in its place.
        await self.calls.ask(Request("deleteQueue", fill, is_repeatable=False))

    async def schedules(self, ref: QueueRef) -> list[ScheduleInfo]:
        return await self.operate("schedules", ref, None, list[ScheduleInfo])

    async def schedule(self, ref: QueueRef, name: str, *, with_payload: bool = False) -> ScheduleInfo:
        return await self.operate("schedule", ref, wire.Named(name=name, payload=with_payload), ScheduleInfo)

    async def set_schedule(self, ref: QueueRef, name: str, change: Change) -> ScheduleInfo:
        given = wire.SetSchedule(
            name=name,
            cron=change.cron,
            timezone=change.timezone,
            every_ms=change.every_ms,
            message=change.message,
            paused=change.paused,
        )
        return await self.operate("set_schedule", ref, given, ScheduleInfo)

    async def delete_schedule(self, ref: QueueRef, name: str) -> None:
        given = wire.Named(name=parse_name("schedule", name))
        await self.operate("delete_schedule", ref, given, type(None), is_repeatable=False)

    async def backup(self, target: str) -> None:
        raise InvalidArgument(
            "a backup is written where the store is: run `holdfast backup DIR TARGET` on the server's machine, which "
            "needs no stop of the server",
            field="target",
        )

    # --- Verbs -------------------------------------------------------------------------------------------------
    # Repeated after no answer they would mean messages that came since: that is for the operator to decide.

    async def purge(self, ref: QueueRef, state: State) -> Changed:
        return await self._change("purge", ref, wire.Purge(state=state))

    async def cancel(self, ref: QueueRef, which: Filter) -> Changed:
        return await self._change("cancel", ref, wire.Which(filter=filter_in(which)))

    async def reprioritise(self, ref: QueueRef, which: Filter, priority: int) -> Changed:
        check_integer("priority", priority, 0, 255)
        return await self._change("reprioritise", ref, wire.Reprioritise(priority=priority, filter=filter_in(which)))

    async def move(self, ref: QueueRef, to: QueueRef, which: Filter, state: State) -> Changed:
        given = wire.Move(queue=to.queue, tenant=to.tenant, filter=filter_in(which), state=state)
        return await self._change("move", ref, given)

    async def remove(self, ref: QueueRef, id: object) -> None:
        await self.operate("remove", ref, wire.Get(id=parse_id(id)), type(None), is_repeatable=False)

    async def redrive(
        self,
        ref: QueueRef,
        which: Filter,
        *,
        rate_per_s: float | None = None,
        dry_run: bool = False,
        edit: Edit | None = None,
    ) -> Changed:
        if rate_per_s is not None:
            check_rate("rate_per_s", rate_per_s)
        given = wire.Redrive(
            filter=filter_in(which),
            rate_per_s=rate_per_s,
            dry_run=dry_run,
            edit=None
            if edit is None
            else wire.EditIn(id=edit.id, payload=edit.payload, content_type=edit.content_type),
        )
        return await self._change("redrive", ref, given, is_repeatable=dry_run)

    async def _change(
        self, operation: str, ref: QueueRef, given: wire.Arguments, *, is_repeatable: bool = False
    ) -> Changed:
        """However many messages it means: it takes as long as it takes."""
        return await self.operate(operation, ref, given, Changed, is_repeatable=is_repeatable, is_long=True)
