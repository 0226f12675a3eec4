"""Schedules, which enqueue a message at each tick of a cron line or of an interval (SPEC 3.9).

The functions are pure; they are given the time. A schedule is an immutable value, so that a store can replace it by
compare and swap.
"""

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.model import ids
from holdfast.model.errors import InvalidArgument, OverQuota
from holdfast.model.message import JSON, Draft, check_draft
from holdfast.model.names import QueueRef
from holdfast.model.parsing import cron
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import MAX_MS

MAX_SCHEDULES = 1_000
LEAST_EVERY_MS = 1_000
# A schedule is read with its payload each time it fires, so the payload is limited, in bytes.
MAX_PAYLOAD = 1 << 20
UTC = "UTC"

# The headers that each tick adds to those of the message.
NAME_HEADER = "schedule"
TICK_HEADER = "scheduled-at"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in its stored form, with either a cron line or an interval."""

    name: str
    # The message that each tick enqueues, with the two headers above added.
    message: Draft
    cron: str | None = None
    timezone: str = UTC
    every_ms: int | None = None
    # The ticks of an interval are at whole intervals from this instant.
    anchor_at: int = 0
    paused: bool = False
    # The next tick; None if the schedule is paused or has no further tick.
    next_at: int | None = None
    # The last tick that enqueued a message, and that message.
    last_at: int | None = None
    last_id: int | None = None
    # The reason why the latest tick enqueued nothing; None if it did.
    last_error: str | None = None


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a schedule that a caller sets. None keeps the current value."""

    cron: str | None = None
    timezone: str | None = None
    every_ms: int | None = None
    message: Draft | None = None
    paused: bool | None = None


class Tick(NamedTuple):
    """A tick that is due, and the next one after it."""

    at: int
    next_at: int | None


class ScheduledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of a schedule as a look-up shows it. The payload is there if it was asked for."""

    content_type: str
    is_json: bool
    headers: dict[str, str]
    priority: int
    ttl_ms: int | None
    group: str | None
    correlation_id: str | None
    max_retries: int | None
    payload: bytes | None
    bytes: int


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as a look-up shows it. Listings leave the payload out to keep the response small."""

    name: str
    cron: str | None
    timezone: str
    every_ms: int | None
    paused: bool
    next_at: int | None
    last_at: int | None
    last_id: str | None
    last_error: str | None
    message: ScheduledMessage


# --- Changes by callers --------------------------------------------------------------------------------------------


def apply_change(
    name: str, current: Schedule | None, change: ScheduleChange, now_ms: int, max_payload: int
) -> Schedule:
    """Return the schedule after a change. It keeps its next tick unless its times change.

    `current` is the stored schedule, None if there is none. Raise `InvalidArgument`, which names the field.
    """
    if change.message is not None:
        _check_message(change.message, name, max_payload)
        message = change.message
    elif current is not None:
        message = current.message
    else:
        raise InvalidArgument(f"schedule {name} is new: give its message", field="message")
    line, zone, every_ms = _times_after(current, change)
    paused = (current is not None and current.paused) if change.paused is None else change.paused
    is_same = current is not None and (line, zone, every_ms) == (current.cron, current.timezone, current.every_ms)
    if current is not None and is_same and paused is current.paused and (paused or current.next_at is not None):
        return replace(current, message=message)
    # Only a new interval starts now. An interval that is resumed keeps its former ticks.
    anchor_at = current.anchor_at if current is not None and is_same else now_ms
    last_at = None if current is None else current.last_at
    schedule = Schedule(
        name=name,
        message=message,
        cron=line,
        timezone=zone,
        every_ms=every_ms,
        anchor_at=anchor_at,
        paused=paused,
        last_at=last_at,
        last_id=None if current is None else current.last_id,
    )
    if paused:
        return schedule
    # The next tick is also after the last one: a server with a slow clock must not repeat a tick that has fired.
    return replace(schedule, next_at=_next_tick(schedule, max(now_ms, last_at or 0)))


def _times_after(current: Schedule | None, change: ScheduleChange) -> tuple[str | None, str, int | None]:
    """Return the cron line, the time zone and the interval after a change."""
    if change.cron is not None and change.every_ms is not None:
        raise InvalidArgument("a schedule has a cron line or an interval (every_ms): give one", field="every_ms")
    every_ms = None if change.every_ms is None else check_integer("every_ms", change.every_ms, LEAST_EVERY_MS, MAX_MS)
    line = None if change.cron is None else cron.parse_line(change.cron)
    if line is None and every_ms is None:
        if current is None:
            raise InvalidArgument("a schedule needs a cron line or an interval: give cron or every_ms", field="cron")
        line, every_ms = current.cron, current.every_ms
    if every_ms is not None:
        if change.timezone is not None:
            raise InvalidArgument("an interval has no timezone: give it with a cron line only", field="timezone")
        return None, UTC, every_ms
    zone = current.timezone if current is not None else UTC
    return line, zone if change.timezone is None else cron.parse_zone(change.timezone), None


def _check_message(message: Draft, name: str, max_payload: int) -> None:
    if message.delay_ms or message.deliver_at is not None:
        raise InvalidArgument(
            "the message of a schedule is enqueued at its ticks: leave delay and deliver_at out",
            field="message.delay_ms",
        )
    if message.key is not None:
        raise InvalidArgument(
            "the message of a schedule cannot have a key: each tick enqueues exactly once without one",
            field="message.idempotency_key",
        )
    check_draft(message, min(max_payload, MAX_PAYLOAD))
    for header in (NAME_HEADER, TICK_HEADER):
        if header in message.headers:
            raise InvalidArgument(f"header {header!r} is set by the schedule itself", field="message.headers")
    check_draft(_draft_at(message, name, MAX_MS), min(max_payload, MAX_PAYLOAD))


# --- Ticks ---------------------------------------------------------------------------------------------------------


def due_tick(schedule: Schedule, now_ms: int) -> Tick | None:
    """Return the tick to fire now, or None if none is due. Of several missed ticks, only the latest fires."""
    first_ms = schedule.next_at
    if first_ms is None or first_ms > now_ms:
        return None
    if schedule.every_ms is not None:
        at_ms = first_ms + (now_ms - first_ms) // schedule.every_ms * schedule.every_ms
    else:
        assert schedule.cron is not None
        at_ms = cron.latest_tick(schedule.cron, schedule.timezone, first_ms, now_ms)
    return Tick(at_ms, _next_tick(schedule, at_ms))


def _next_tick(schedule: Schedule, after_ms: int) -> int | None:
    if schedule.every_ms is not None:
        passed = (after_ms - schedule.anchor_at) // schedule.every_ms
        return schedule.anchor_at + (passed + 1) * schedule.every_ms
    assert schedule.cron is not None
    return cron.next_tick(schedule.cron, schedule.timezone, after_ms)


def draft_at(schedule: Schedule, at_ms: int) -> Draft:
    """Return the message to enqueue for the tick at `at_ms`."""
    return _draft_at(schedule.message, schedule.name, at_ms)


def _draft_at(message: Draft, name: str, at_ms: int) -> Draft:
    return replace(message, headers={**message.headers, NAME_HEADER: name, TICK_HEADER: str(at_ms)})


def reason_of(schedule: Schedule, at_ms: int) -> str:
    """Return the reason that the journal gives for the message of a tick."""
    return f"schedule {schedule.name}, tick {at_ms}"


def after_fired(schedule: Schedule, tick: Tick, id: int) -> Schedule:
    """Return the schedule after a tick that enqueued the message `id`."""
    return replace(schedule, next_at=tick.next_at, last_at=tick.at, last_id=id, last_error=None)


def after_skipped(schedule: Schedule, next_at: int | None, error: str) -> Schedule:
    """Return the schedule after a tick that enqueued nothing. `last_at` stays the time of the last message."""
    return replace(schedule, next_at=next_at, last_error=error)


def check_schedule_count(ref: QueueRef, count: int) -> None:
    """Raise `OverQuota` if a queue with `count` schedules cannot have another one."""
    if count >= MAX_SCHEDULES:
        raise OverQuota(
            f"queue {ref} has {count} schedules, the maximum: delete one first",
            quota="max_schedules",
            limit=MAX_SCHEDULES,
        )


# --- Look-ups ------------------------------------------------------------------------------------------------------


def info_of(schedule: Schedule, *, with_payload: bool) -> ScheduleInfo:
    """Return a schedule as look-ups show it."""
    message = schedule.message
    return ScheduleInfo(
        name=schedule.name,
        cron=schedule.cron,
        timezone=schedule.timezone,
        every_ms=schedule.every_ms,
        paused=schedule.paused,
        next_at=schedule.next_at,
        last_at=schedule.last_at,
        last_id=None if schedule.last_id is None else ids.to_uuid(schedule.last_id),
        last_error=schedule.last_error,
        message=ScheduledMessage(
            content_type=message.content_type,
            is_json=message.content_type == JSON if message.is_json is None else message.is_json,
            headers=dict(message.headers),
            priority=message.priority,
            ttl_ms=message.ttl_ms,
            group=message.group,
            correlation_id=message.correlation_id,
            max_retries=message.max_retries,
            payload=message.payload if with_payload else None,
            bytes=message.bytes,
        ),
    )
