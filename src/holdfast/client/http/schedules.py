"""Schedules over HTTP."""

from msgspec import UNSET
from msgspec.structs import asdict

from holdfast.client.http.shapes import message_in, payload_out
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import Draft, check_draft
from holdfast.model.schedules import Change, ScheduledMessage, ScheduleInfo
from holdfast.wire.http import ScheduledIn, ScheduledOut, ScheduleOut, ScheduleRequest

# The server knows how large a payload may be.
_ANY_SIZE = 1 << 62


def request_of(change: Change) -> ScheduleRequest:
    return ScheduleRequest(
        cron=change.cron,
        timezone=change.timezone,
        every_ms=change.every_ms,
        message=None if change.message is None else _scheduled_in(change.message),
        paused=change.paused,
    )


def _scheduled_in(draft: Draft) -> ScheduledIn:
    check_draft(draft, _ANY_SIZE)
    given = asdict(message_in(draft))
    for field in ("delay_ms", "deliver_at", "idempotency_key"):
        if given.pop(field) is not None:
            raise InvalidArgument(f"a schedule's message has no {field}", field=f"message.{field}")
    return ScheduledIn(**given)


def schedule_of(out: ScheduleOut) -> ScheduleInfo:
    return ScheduleInfo(
        name=out.name,
        cron=out.cron,
        timezone=out.timezone,
        every_ms=out.every_ms,
        paused=out.paused,
        next_at=out.next_at,
        last_at=out.last_at,
        last_id=out.last_id,
        last_error=out.last_error,
        message=_message_of(out.message),
    )


def _message_of(out: ScheduledOut) -> ScheduledMessage:
    is_shown = out.payload is not UNSET or out.payload_base64 is not UNSET
    return ScheduledMessage(
        content_type=out.content_type,
        is_json=out.is_json,
        headers=out.headers,
        priority=out.priority,
        ttl_ms=out.ttl_ms,
        group=out.group,
        correlation_id=out.correlation_id,
        max_retries=out.max_retries,
        payload=payload_out(out.payload, out.payload_base64) if is_shown else None,
        bytes=out.bytes,
    )
