"""Queues, tenants, policies and the operators' verbs over HTTP."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict

from holdfast.client.http.calls import Calls, Request
from holdfast.client.http.connection import Answer
from holdfast.client.http.failures import answer_error, strange_answer
from holdfast.client.http.messages import decode, queue_path
from holdfast.client.http.schedules import request_of, schedule_of
from holdfast.client.http.shapes import config_of, edit_in, filter_in
from holdfast.client.payloads import encode_json
from holdfast.model.answers import Changed, QueueSummary, Stats, TenantSummary
from holdfast.model.checks import check_integer, check_rate
from holdfast.model.durations import MAX_MS
from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import parse_id
from holdfast.model.message import State
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Edit, Filter
from holdfast.model.schedules import Change, ScheduleInfo
from holdfast.wire.http import (
    CancelRequest,
    ChangedAnswer,
    MoveRequest,
    PurgeRequest,
    QueuesAnswer,
    RedriveAnswer,
    RedriveRequest,
    ReprioritiseRequest,
    ScheduleOut,
    SchedulesAnswer,
    TargetIn,
    encode,
)

C = TypeVar("C", bound=msgspec.Struct)


class _Tenants(msgspec.Struct):
    tenants: list[dict[str, Any]]


_tenants = msgspec.json.Decoder(_Tenants)
_document = msgspec.json.Decoder(dict[str, Any])
_queues = msgspec.json.Decoder(QueuesAnswer)
_changed = msgspec.json.Decoder(ChangedAnswer)
_schedule = msgspec.json.Decoder(ScheduleOut)
_schedules = msgspec.json.Decoder(SchedulesAnswer)
_redriven = msgspec.json.Decoder(RedriveAnswer)


class HttpAdmin:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    # --- Tenants and queues ------------------------------------------------------------------------------------

    async def tenants(self) -> list[TenantSummary]:
        answer = await self._calls.ask(Request("GET", "/v1/tenants", []))
        return [self._config(each, TenantSummary) for each in decode(self._calls, _tenants, answer).tenants]

    async def tenant(self, tenant: str) -> TenantConfig:
        return self._config(await self._document("GET", f"/v1/tenants/{tenant}"), TenantConfig)

    async def set_tenant(self, tenant: str, changes: Mapping[str, Any]) -> TenantConfig:
        return self._config(
            await self._document("PUT", f"/v1/tenants/{tenant}", _encode_changes(changes)), TenantConfig
        )

    async def tenant_stats(self, tenant: str) -> Stats:
        document = await self._document("GET", f"/v1/tenants/{tenant}")
        return self._config(document.get("stats", {}), Stats)

    async def queues(self, tenant: str) -> list[QueueSummary]:
        answer = await self._calls.ask(Request("GET", f"/v1/tenants/{tenant}/queues", []))
        return decode(self._calls, _queues, answer).queues

    async def policy(self, ref: QueueRef) -> QueuePolicy:
        return self._config((await self._document("GET", queue_path(ref))).get("policy", {}), QueuePolicy)

    async def set_policy(self, ref: QueueRef, changes: Mapping[str, Any]) -> QueuePolicy:
        return self._config(await self._document("PUT", queue_path(ref), _encode_changes(changes)), QueuePolicy)

    async def pause(self, ref: QueueRef, is_paused: bool) -> None:
        await self._calls.ask(Request("POST", f"{queue_path(ref)}/{'pause' if is_paused else 'resume'}", []))

    async def delete(self, ref: QueueRef, force_after_ms: int) -> None:
        check_integer("force_after", force_after_ms, 0, MAX_MS)
        path = f"{queue_path(ref)}?force_after_ms={force_after_ms}"
        # Not found or draining after a try that went unanswered: that try did it.
        await self._ask_once_done(Request("DELETE", path, []), "queue_not_found", "draining")

    async def schedules(self, ref: QueueRef) -> list[ScheduleInfo]:
        answer = await self._calls.ask(Request("GET", f"{queue_path(ref)}/schedules", []))
        return [schedule_of(each) for each in decode(self._calls, _schedules, answer).schedules]

    async def schedule(self, ref: QueueRef, name: str, *, with_payload: bool = False) -> ScheduleInfo:
        path = _schedule_path(ref, name) + ("?payload=1" if with_payload else "")
        return schedule_of(decode(self._calls, _schedule, await self._calls.ask(Request("GET", path, []))))

    async def set_schedule(self, ref: QueueRef, name: str, change: Change) -> ScheduleInfo:
        request = Request("PUT", _schedule_path(ref, name), [encode(request_of(change))])
        return schedule_of(decode(self._calls, _schedule, await self._calls.ask(request)))

    async def delete_schedule(self, ref: QueueRef, name: str) -> None:
        await self._ask_once_done(Request("DELETE", _schedule_path(ref, name), []), "message_not_found")

    async def backup(self, target: str) -> None:
        raise InvalidArgument(
            "a backup is written where the store is: run `holdfast backup DIR TARGET` on the server's machine, which "
            "needs no stop of the server",
            field="target",
        )

    # --- Verbs -------------------------------------------------------------------------------------------------
    # Repeated after no answer they would mean messages that came since: that is for the operator to decide.

    async def purge(self, ref: QueueRef, state: State) -> Changed:
        return await self._change(ref, "purge", PurgeRequest(state=state))

    async def cancel(self, ref: QueueRef, which: Filter) -> Changed:
        return await self._change(ref, "cancel", CancelRequest(filter=filter_in(which)))

    async def reprioritise(self, ref: QueueRef, which: Filter, priority: int) -> Changed:
        check_integer("priority", priority, 0, 255)
        return await self._change(ref, "reprioritise", ReprioritiseRequest(priority=priority, filter=filter_in(which)))

    async def move(self, ref: QueueRef, to: QueueRef, which: Filter, state: State) -> Changed:
        target = TargetIn(queue=to.queue, tenant=to.tenant)
        return await self._change(ref, "move", MoveRequest(to=target, filter=filter_in(which), state=state))

    async def remove(self, ref: QueueRef, id: object) -> None:
        await self._ask_once_done(
            Request("DELETE", f"{queue_path(ref)}/messages/{parse_id(id)}", []), "message_not_found"
        )

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
        document = RedriveRequest(
            filter=filter_in(which),
            rate_per_s=rate_per_s,
            dry_run=dry_run,
            edit=None if edit is None else edit_in(edit),
        )
        answer = await self._verb(ref, "redrive", document, is_repeatable=dry_run)
        redriven = decode(self._calls, _redriven, answer)
        return Changed(redriven.matched, redriven.redriven)

    async def _change(self, ref: QueueRef, verb: str, document: msgspec.Struct) -> Changed:
        changed = decode(self._calls, _changed, await self._verb(ref, verb, document))
        return Changed(changed.matched, changed.changed)

    async def _verb(self, ref: QueueRef, verb: str, document: msgspec.Struct, *, is_repeatable: bool = False) -> Answer:
        """However many messages it means: it takes as long as it takes."""
        path = f"{queue_path(ref)}/{verb}"
        return await self._calls.ask(
            Request("POST", path, [encode(document)], is_repeatable=is_repeatable, is_long=True)
        )

    async def _ask_once_done(self, request: Request, *codes: str) -> None:
        told = await self._calls.tell(request)
        if told.answer.status >= 300:
            error = answer_error(self._calls.url, told.answer)
            if not (told.is_unsure and error.code in codes):
                raise error

    async def _document(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        answer = await self._calls.ask(Request(method, path, [] if body is None else [body]))
        return decode(self._calls, _document, answer)

    def _config(self, document: Mapping[str, Any], kind: type[C]) -> C:
        try:
            return config_of(document, kind)
        except msgspec.ValidationError:
            raise strange_answer(self._calls.url) from None


def _schedule_path(ref: QueueRef, name: str) -> str:
    return f"{queue_path(ref)}/schedules/{parse_name('schedule', name)}"


def _encode_changes(changes: Mapping[str, Any]) -> bytes:
    """By the rules of payloads: a NaN would pass for null, which means unlimited."""
    return encode_json(
        {name: asdict(value) if isinstance(value, msgspec.Struct) else value for name, value in changes.items()}
    )
