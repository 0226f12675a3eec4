"""Tenants, queues, their messages, and the operators' verbs."""

from typing import Any

import msgspec
from msgspec.structs import asdict

from holdfast.doors.http import streams
from holdfast.doors.http.calls import Call, decode
from holdfast.doors.http.presence import Presence
from holdfast.doors.http.shapes import info_out, payload_of
from holdfast.doors.http.ways import Way, flag_of, integer_of, queue_in_path
from holdfast.model.answers import Changed
from holdfast.model.ids import parse_id
from holdfast.model.message import BYTES, JSON
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.requests import EVERYTHING, Edit, Filter, make_filter, parse_listing, parse_state
from holdfast.service.admin import FORCE_AFTER_MS
from holdfast.wire.http import (
    CancelRequest,
    ChangedAnswer,
    DrainingAnswer,
    EditIn,
    FilterIn,
    MessagesAnswer,
    MoveRequest,
    Nothing,
    PausedAnswer,
    PeekAnswer,
    PurgeRequest,
    QueueAnswer,
    QueuesAnswer,
    RedriveAnswer,
    RedriveRequest,
    ReprioritiseRequest,
    TenantAnswer,
    TenantsAnswer,
    encode,
)

# Messages on a page, unless it was asked for more.
_PAGE = 100

# The policy's own rules refuse what is in it by its name: here it is any document.
_changes = msgspec.json.Decoder(dict[str, Any])
_filter = msgspec.json.Decoder(FilterIn)
_nothing = msgspec.json.Decoder(Nothing)
_purge = msgspec.json.Decoder(PurgeRequest)
_redrive = msgspec.json.Decoder(RedriveRequest)
_move = msgspec.json.Decoder(MoveRequest)
_cancel = msgspec.json.Decoder(CancelRequest)
_reprioritise = msgspec.json.Decoder(ReprioritiseRequest)


async def _optional_body(call: Call) -> bytes:
    """A body may be left out where every field of it may."""
    return await call.body() or b"{}"


def _ref_in_query(call: Call) -> QueueRef:
    fields = call.query("tenant", "queue")
    return call.ref(fields.get("tenant"), fields.get("queue"))


# --- One queue, by its query -----------------------------------------------------------------------------------


async def stats(call: Call) -> None:
    await call.answer(encode(await call.session.stats(_ref_in_query(call))))


async def watch(call: Call) -> None:
    await streams.watch(call, _ref_in_query(call))


# --- Tenants ---------------------------------------------------------------------------------------------------


async def list_tenants(call: Call) -> None:
    call.query()
    await call.answer(encode(TenantsAnswer(tenants=await call.session.tenants())))


async def get_tenant(call: Call) -> None:
    call.query()
    tenant = parse_name("tenant", call.path["tenant"])
    config = await call.session.tenant(tenant)
    counts = await call.session.tenant_stats(tenant)
    await call.answer(encode(TenantAnswer(tenant=tenant, stats=counts, **asdict(config))))


async def put_tenant(call: Call) -> None:
    call.query()
    tenant = parse_name("tenant", call.path["tenant"])
    changes = decode(_changes, await _optional_body(call))
    config = await call.session.set_tenant(tenant, changes)
    await call.answer(encode(TenantAnswer(tenant=tenant, **asdict(config))))


# --- Queues ----------------------------------------------------------------------------------------------------


async def list_queues(call: Call) -> None:
    call.query()
    tenant = parse_name("tenant", call.path["tenant"])
    await call.answer(encode(QueuesAnswer(queues=await call.session.queues(tenant))))


async def get_queue(call: Call) -> None:
    call.query()
    ref = queue_in_path(call)
    counts, policy = await call.session.queue(ref)
    await call.answer(encode(QueueAnswer(tenant=ref.tenant, queue=ref.queue, policy=policy, **asdict(counts))))


async def put_queue(call: Call) -> None:
    call.query()
    ref = queue_in_path(call)
    changes = decode(_changes, await _optional_body(call))
    await call.answer(encode(await call.session.set_policy(ref, changes)))


async def delete_queue(call: Call) -> None:
    force_after_ms = integer_of(call.query("force_after_ms"), "force_after_ms")
    ref = queue_in_path(call)
    await call.session.delete(ref, FORCE_AFTER_MS if force_after_ms is None else force_after_ms)
    await call.answer(encode(DrainingAnswer(tenant=ref.tenant, queue=ref.queue, draining=True)), 202)


# --- Verbs -----------------------------------------------------------------------------------------------------


async def pause(call: Call) -> None:
    await _set_paused(call, True)


async def resume(call: Call) -> None:
    await _set_paused(call, False)


async def _set_paused(call: Call, is_paused: bool) -> None:
    call.query()
    ref = queue_in_path(call)
    decode(_nothing, await _optional_body(call))
    await call.session.pause(ref, is_paused)
    await call.answer(encode(PausedAnswer(tenant=ref.tenant, queue=ref.queue, paused=is_paused)))


async def purge(call: Call) -> None:
    call.query()
    ref = queue_in_path(call)
    request = decode(_purge, await _optional_body(call))
    await _answer_changed(call, await call.session.purge(ref, parse_state(request.state)))


async def cancel(call: Call) -> None:
    call.query()
    ref = queue_in_path(call)
    request = decode(_cancel, await _optional_body(call))
    await _answer_changed(call, await call.session.cancel(ref, _filter_of(request.filter)))


async def reprioritise(call: Call) -> None:
    call.query()
    ref = queue_in_path(call)
    request = decode(_reprioritise, await call.body())
    which = _filter_of(request.filter)
    await _answer_changed(call, await call.session.reprioritise(ref, which, request.priority))


async def move(call: Call) -> None:
    call.query()
    ref = queue_in_path(call)
    request = decode(_move, await call.body())
    to = QueueRef(
        ref.tenant if request.to.tenant is None else parse_name("tenant", request.to.tenant),
        parse_name("queue", request.to.queue),
    )
    moved = await call.session.move(ref, to, _filter_of(request.filter), parse_state(request.state))
    await _answer_changed(call, moved)


async def redrive(call: Call) -> None:
    """At a rate it takes as long as it takes. If the caller leaves, it ends after the step it is at; the same call
    again goes on from there."""
    call.query()
    ref = queue_in_path(call)
    request = decode(_redrive, await _optional_body(call))
    presence = Presence(call)
    try:
        redriven = await presence.wait(
            call.session.redrive(
                ref,
                _filter_of(request.filter),
                rate_per_s=request.rate_per_s,
                dry_run=request.dry_run,
                edit=None if request.edit is None else _edit_of(request.edit),
            ),
            _leave_done,
        )
    finally:
        presence.close()
    await call.answer(encode(RedriveAnswer(matched=redriven.matched, redriven=redriven.redriven)))


def _leave_done(changed: Changed) -> None:
    """What was redriven stays so, whether or not its caller hears of it."""


async def _answer_changed(call: Call, changed: Changed) -> None:
    await call.answer(encode(ChangedAnswer(matched=changed.matched, changed=changed.changed)))


def _filter_of(given: FilterIn | None) -> Filter:
    if given is None:
        return EVERYTHING
    return make_filter({name: value for name, value in asdict(given).items() if value is not None})


def _edit_of(given: EditIn) -> Edit:
    payload, is_json = payload_of(given.payload, given.payload_base64, "edit")
    return Edit(id=parse_id(given.id), payload=payload, content_type=JSON if is_json else BYTES)


# --- Messages --------------------------------------------------------------------------------------------------


async def list_messages(call: Call) -> None:
    fields = call.query("state", "cursor", "limit", "payload", "filter")
    ref = queue_in_path(call)
    limit = integer_of(fields, "limit")
    given = _filter_of(decode(_filter, fields["filter"].encode()) if "filter" in fields else None)
    state, which = parse_listing(fields.get("state"), given)
    page = await call.session.browse(
        ref,
        state,
        which,
        fields.get("cursor"),
        _PAGE if limit is None else limit,
        with_payload=flag_of(fields, "payload"),
    )
    await call.answer(encode(MessagesAnswer(messages=[info_out(each) for each in page], cursor=page.cursor)))


async def peek(call: Call) -> None:
    limit = integer_of(call.query("limit"), "limit")
    found = await call.session.peek(queue_in_path(call), 1 if limit is None else limit)
    await call.answer(encode(PeekAnswer(messages=[info_out(each) for each in found])))


async def get_message(call: Call) -> None:
    fields = call.query("payload")
    ref = queue_in_path(call)
    info = await call.session.get(ref, call.path["id"], with_payload=flag_of(fields, "payload"))
    call.correlation_id = info.correlation_id
    await call.answer(encode(info_out(info)))


async def delete_message(call: Call) -> None:
    call.query()
    await call.session.remove(queue_in_path(call), call.path["id"])
    await call.answer(encode(Nothing()))


_TENANT = "/v1/tenants/{tenant}"
_QUEUE = _TENANT + "/queues/{queue}"

WAYS = (
    Way("GET", "/v1/queue/stats", "stats", stats),
    Way("GET", "/v1/queue/watch", "watch", watch),
    Way("GET", "/v1/tenants", "tenants", list_tenants),
    Way("GET", _TENANT, "tenant", get_tenant),
    Way("PUT", _TENANT, "set_tenant", put_tenant),
    Way("GET", _TENANT + "/queues", "queues", list_queues),
    Way("GET", _QUEUE, "queue", get_queue),
    Way("PUT", _QUEUE, "set_policy", put_queue),
    Way("DELETE", _QUEUE, "delete", delete_queue),
    Way("POST", _QUEUE + "/pause", "pause", pause),
    Way("POST", _QUEUE + "/resume", "resume", resume),
    Way("POST", _QUEUE + "/purge", "purge", purge),
    Way("POST", _QUEUE + "/redrive", "redrive", redrive),
    Way("POST", _QUEUE + "/move", "move", move),
    Way("POST", _QUEUE + "/cancel", "cancel", cancel),
    Way("POST", _QUEUE + "/reprioritise", "reprioritise", reprioritise),
    Way("GET", _QUEUE + "/messages", "browse", list_messages),
    Way("GET", _QUEUE + "/peek", "peek", peek),
    Way("GET", _QUEUE + "/messages/{id}", "get", get_message),
    Way("DELETE", _QUEUE + "/messages/{id}", "remove", delete_message),
)
