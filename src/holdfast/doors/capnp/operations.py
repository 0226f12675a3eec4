"""Operations by name: what has no shape of its own in the schema. Arguments and answers are JSON."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.doors.capnp.calls import Call
from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import parse_id
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.requests import Edit, StateChange, check_progress, make_filter, parse_listing, parse_state
from holdfast.model.schedules import Change
from holdfast.telemetry.log import printable
from holdfast.wire import operations as wire

A = TypeVar("A", bound=wire.Arguments)


class Operation(NamedTuple):
    decoder: msgspec.json.Decoder[Any]
    carry_out: Callable[[Call, QueueRef, Any], Awaitable[object]]


async def operate(call: Call) -> None:
    name = call.params.operation
    operation = OPERATIONS.get(name)
    if operation is None:
        raise InvalidArgument(
            f"{printable(name[:80])!r} is not an operation; there are {', '.join(sorted(OPERATIONS))}",
            field="operation",
        )
    call.operation = name
    arguments = _decode(operation.decoder, call.params.arguments or b"{}")
    call.results.answer = msgspec.json.encode(await operation.carry_out(call, call.ref(), arguments))


def _decode(decoder: msgspec.json.Decoder[A], data: bytes) -> A:
    try:
        data.decode()
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = printable(path.rstrip("`").lstrip(".")[:200])
        raise InvalidArgument(f"{field or 'arguments'}: {printable(text[:200])}", field=field or "arguments") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument("arguments are not a JSON document", field="arguments") from None


# --- Messages ------------------------------------------------------------------------------------------------------


async def _get(call: Call, ref: QueueRef, given: wire.Get) -> object:
    return await call.session.get(ref, given.id, with_payload=given.payload)


async def _peek(call: Call, ref: QueueRef, given: wire.Peek) -> object:
    return await call.session.peek(ref, given.limit)


async def _browse(call: Call, ref: QueueRef, given: wire.Browse) -> object:
    state, which = parse_listing(given.state, make_filter(given.filter))
    page = await call.session.browse(ref, state, which, given.cursor, given.limit, with_payload=given.payload)
    return wire.PageAnswer(page, page.cursor)


async def _journal(call: Call, ref: QueueRef, given: wire.Journal) -> object:
    call.queue = None
    tenant = None if given.tenant is None else parse_name("tenant", given.tenant)
    events = await call.session.journal(given.after, given.limit, tenant=tenant, wait_ms=given.wait_ms)
    return wire.EventsAnswer(events, events.next)


async def _ledger(call: Call, ref: QueueRef, given: wire.Ledger) -> object:
    return await call.session.ledger(ref, given.consumer, given.number)


async def _ledger_ack(call: Call, ref: QueueRef, given: wire.LedgerAck) -> object:
    return await call.session.ledger_ack(ref, given.consumer, given.upto)


async def _ledger_extend(call: Call, ref: QueueRef, given: wire.LedgerExtend) -> object:
    return await call.session.ledger_extend(ref, given.consumer, given.lease_ms)


async def _save_state(call: Call, ref: QueueRef, given: wire.SaveState) -> object:
    receipt = Receipt.parse(given.receipt)
    progress = None if given.progress is None else check_progress(given.progress.percent, given.progress.text)
    if given.document is UNSET and progress is None:
        raise InvalidArgument("give the document to save, or progress", field="document")
    etag = None
    if given.document is not UNSET:
        change = StateChange(document=bytes(given.document), etag=given.etag)
        etag = await call.session.save_state(ref, receipt, change)
    if progress is not None:
        etag = await call.session.save_state(ref, receipt, StateChange(progress=progress))
    return wire.EtagAnswer(etag)


# --- Tenants and queues --------------------------------------------------------------------------------------------


async def _tenants(call: Call, ref: QueueRef, given: wire.Nothing) -> object:
    call.queue = None
    return await call.session.tenants()


async def _tenant(call: Call, ref: QueueRef, given: wire.Nothing) -> object:
    call.queue = None
    return await call.session.tenant(ref.tenant)


async def _tenant_stats(call: Call, ref: QueueRef, given: wire.Nothing) -> object:
    call.queue = None
    return await call.session.tenant_stats(ref.tenant)


async def _set_tenant(call: Call, ref: QueueRef, given: wire.Configure) -> object:
    call.queue = None
    return await call.session.set_tenant(ref.tenant, given.changes)


async def _policy(call: Call, ref: QueueRef, given: wire.Nothing) -> object:
    return await call.session.policy(ref)


async def _set_policy(call: Call, ref: QueueRef, given: wire.Configure) -> object:
    return await call.session.set_policy(ref, given.changes)


async def _pause(call: Call, ref: QueueRef, given: wire.Pause) -> object:
    await call.session.pause(ref, given.paused)
    return None


# --- Verbs ---------------------------------------------------------------------------------------------------------


async def _purge(call: Call, ref: QueueRef, given: wire.Purge) -> object:
    return await call.session.purge(ref, parse_state(given.state))


async def _cancel(call: Call, ref: QueueRef, given: wire.Which) -> object:
    return await call.session.cancel(ref, make_filter(given.filter))


async def _reprioritise(call: Call, ref: QueueRef, given: wire.Reprioritise) -> object:
    return await call.session.reprioritise(ref, make_filter(given.filter), given.priority)


async def _move(call: Call, ref: QueueRef, given: wire.Move) -> object:
    tenant = ref.tenant if given.tenant is None else parse_name("tenant", given.tenant)
    to = QueueRef(tenant, parse_name("queue", given.queue))
    return await call.session.move(ref, to, make_filter(given.filter), parse_state(given.state))


async def _remove(call: Call, ref: QueueRef, given: wire.Get) -> object:
    await call.session.remove(ref, given.id)
    return None


async def _redrive(call: Call, ref: QueueRef, given: wire.Redrive) -> object:
    edit = given.edit
    return await call.session.redrive(
        ref,
        make_filter(given.filter),
        rate_per_s=given.rate_per_s,
        dry_run=given.dry_run,
        edit=None if edit is None else Edit(id=parse_id(edit.id), payload=edit.payload, content_type=edit.content_type),
    )


# --- Schedules -----------------------------------------------------------------------------------------------------


async def _schedules(call: Call, ref: QueueRef, given: wire.Nothing) -> object:
    return await call.session.schedules(ref)


async def _schedule(call: Call, ref: QueueRef, given: wire.Named) -> object:
    return await call.session.schedule(ref, given.name, with_payload=given.payload)


async def _set_schedule(call: Call, ref: QueueRef, given: wire.SetSchedule) -> object:
    change = Change(
        cron=given.cron,
        timezone=given.timezone,
        every_ms=given.every_ms,
        message=given.message,
        paused=given.paused,
    )
    return await call.session.set_schedule(ref, given.name, change)


async def _delete_schedule(call: Call, ref: QueueRef, given: wire.Named) -> object:
    await call.session.delete_schedule(ref, given.name)
    return None


def _operation(kind: type[A], carry_out: Callable[[Call, QueueRef, A], Awaitable[object]]) -> Operation:
    return Operation(msgspec.json.Decoder(kind), carry_out)


# By the names that access knows them by.
OPERATIONS: dict[str, Operation] = {
    "get": _operation(wire.Get, _get),
    "peek": _operation(wire.Peek, _peek),
    "browse": _operation(wire.Browse, _browse),
    "journal": _operation(wire.Journal, _journal),
    "ledger": _operation(wire.Ledger, _ledger),
    "ledger_ack": _operation(wire.LedgerAck, _ledger_ack),
    "ledger_extend": _operation(wire.LedgerExtend, _ledger_extend),
    "save_state": _operation(wire.SaveState, _save_state),
    "tenants": _operation(wire.Nothing, _tenants),
    "tenant": _operation(wire.Nothing, _tenant),
    "tenant_stats": _operation(wire.Nothing, _tenant_stats),
    "set_tenant": _operation(wire.Configure, _set_tenant),
    "policy": _operation(wire.Nothing, _policy),
    "set_policy": _operation(wire.Configure, _set_policy),
    "pause": _operation(wire.Pause, _pause),
    "purge": _operation(wire.Purge, _purge),
    "cancel": _operation(wire.Which, _cancel),
    "reprioritise": _operation(wire.Reprioritise, _reprioritise),
    "move": _operation(wire.Move, _move),
    "remove": _operation(wire.Get, _remove),
    "redrive": _operation(wire.Redrive, _redrive),
    "schedules": _operation(wire.Nothing, _schedules),
    "schedule": _operation(wire.Named, _schedule),
    "set_schedule": _operation(wire.SetSchedule, _set_schedule),
    "delete_schedule": _operation(wire.Named, _delete_schedule),
}
