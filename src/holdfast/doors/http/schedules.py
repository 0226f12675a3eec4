"""Schedules of a queue."""

import base64

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import asdict

from holdfast.doors.http.calls import Call, decode
from holdfast.doors.http.shapes import draft_of
from holdfast.doors.http.ways import Way, flag_of, queue_in_path
from holdfast.model.schedules import Change, ScheduledMessage, ScheduleInfo
from holdfast.wire.http import (
    MessageIn,
    Nothing,
    ScheduledOut,
    ScheduleOut,
    ScheduleRequest,
    SchedulesAnswer,
    encode,
)

_request = msgspec.json.Decoder(ScheduleRequest)


async def list_schedules(call: Call) -> None:
    call.query()
    infos = await call.session.schedules(queue_in_path(call))
    await call.answer(encode(SchedulesAnswer(schedules=[_schedule_out(each) for each in infos])))


async def get_schedule(call: Call) -> None:
    fields = call.query("payload")
    ref = queue_in_path(call)
    info = await call.session.schedule(ref, call.path["name"], with_payload=flag_of(fields, "payload"))
    await call.answer(encode(_schedule_out(info)))


async def put_schedule(call: Call) -> None:
    call.query()
    ref = queue_in_path(call)
    request = decode(_request, await call.body())
    info = await call.session.set_schedule(ref, call.path["name"], _change_of(request))
    await call.answer(encode(_schedule_out(info)))


async def delete_schedule(call: Call) -> None:
    call.query()
    await call.session.delete_schedule(queue_in_path(call), call.path["name"])
    await call.answer(encode(Nothing()))


def _change_of(request: ScheduleRequest) -> Change:
    message = None
    if request.message is not None:
        # Each tick is a call of its own: the messages do not have the correlation id of this one.
        message = draft_of(MessageIn(**asdict(request.message)), "message", None)
    return Change(
        cron=request.cron,
        timezone=request.timezone,
        every_ms=request.every_ms,
        message=message,
        paused=request.paused,
    )


def _schedule_out(info: ScheduleInfo) -> ScheduleOut:
    return ScheduleOut(
        name=info.name,
        cron=info.cron,
        every_ms=info.every_ms,
        timezone=info.timezone,
        message=_message_out(info.message),
        paused=info.paused,
        next_at=info.next_at,
        last_at=info.last_at,
        last_id=info.last_id,
        last_error=info.last_error,
    )


def _message_out(message: ScheduledMessage) -> ScheduledOut:
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    if message.payload is not None:
        if message.is_json:
            payload = Raw(message.payload)
        else:
            payload_base64 = base64.b64encode(message.payload).decode()
    return ScheduledOut(
        content_type=message.content_type,
        is_json=message.is_json,
        headers=message.headers,
        priority=message.priority,
        ttl_ms=message.ttl_ms,
        group=message.group,
        correlation_id=message.correlation_id,
        max_retries=message.max_retries,
        bytes=message.bytes,
        payload=payload,
        payload_base64=payload_base64,
    )


_SCHEDULES = "/v1/tenants/{tenant}/queues/{queue}/schedules"

WAYS = (
    Way("GET", _SCHEDULES, "schedules", list_schedules),
    Way("GET", _SCHEDULES + "/{name}", "schedule", get_schedule),
    Way("PUT", _SCHEDULES + "/{name}", "set_schedule", put_schedule),
    Way("DELETE", _SCHEDULES + "/{name}", "delete_schedule", delete_schedule),
)
