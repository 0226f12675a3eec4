"""Schedules: a message that is enqueued at every tick of a cron line or an interval (SPEC 3.9).

Pure: each function is given the time. A schedule is a value, and every change of it another one, so that a store can
replace one only where nobody else has.
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
# A schedule is read whole whenever it fires; larger payloads are for callers that can send them bit by bit.
MAX_PAYLOAD = 1 << 20
UTC = "UTC"

# What the message of a tick carries besides its own headers.
NAME_HEADER = "schedule"
TICK_HEADER = "scheduled-at"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """As a store keeps it. It has a cron line or an interval."""

    name: str
    # What each tick enqueues, with two headers more.
    message: Draft
    cron: str | None = None
    timezone: str = UTC
    every_ms: int | None = None
    # An interval's ticks lie at whole intervals from here.
    anchor_at: int = 0
    paused: bool = False
    # The next tick to fire; None: paused, or there is none.
    next_at: int | None = None
    # The last tick that fired, its message, and why the last one did not.
    last_at: int | None = None
    last_id: int | None = None
    last_error: str | None = None


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller says of a schedule; None leaves it as it is."""

    cron: str | None = None
    timezone: str | None = None
    every_ms: int | None = None
    message: Draft | None = None
    paused: bool | None = None


class Tick(NamedTuple):
    """A tick that is due, and the one behind it."""

    at: int
    next_at: int | None


class ScheduledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What each tick enqueues; the payload where it was asked for."""

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
    """A schedule looked up. Without its payload it fits many times into one answer."""

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


# --- What callers say ----------------------------------------------------------------------------------------------


def changed(name: str, was: Schedule | None, change: ScheduleChange, now_ms: int, max_payload: int) -> Schedule:
    """The schedule as it is from now on. A schedule whose times stay the same keeps its next tick."""
    if change.message is not None:
        _check_message(change.message, name, max_payload)
        message = change.message
    elif was is not None:
        message = was.message
    else:
        raise InvalidArgument(f"schedule {name} is new: give its message", field="message")
    line, zone, every_ms = _times_of(was, change)
    paused = (was is not None and was.paused) if change.paused is None else change.paused
    is_same = was is not None and (line, zone, every_ms) == (was.cron, was.timezone, was.every_ms)
    if was is not None and is_same and paused is was.paused and (paused or was.next_at is not None):
        return replace(was, message=message)
    # Only a new interval begins now: one that was paused comes back in step.
    anchor_at = was.anchor_at if was is not None and is_same else now_ms
    last_at = None if was is None else was.last_at
    schedule = Schedule(
        name=name,
        message=message,
        cron=line,
        timezone=zone,
        every_ms=every_ms,
        anchor_at=anchor_at,
        paused=paused,
        last_at=last_at,
        last_id=None if was is None else was.last_id,
    )
    if paused:
        return schedule
    # Behind the last one too: a caller whose clock is slow must not bring a tick back that has fired.
    return replace(schedule, next_at=_next_tick(schedule, max(now_ms, last_at or 0)))


def _times_of(was: Schedule | None, change: ScheduleChange) -> tuple[str | None, str, int | None]:
    if change.cron is not None and change.every_ms is not None:
        raise InvalidArgument("a schedule has a cron line or an interval (every_ms): give one", field="every_ms")
    every_ms = None if change.every_ms is None else check_integer("every_ms", change.every_ms, LEAST_EVERY_MS, MAX_MS)
    line = None if change.cron is None else cron.parse_line(change.cron)
    if line is None and every_ms is None:
        if was is None:
            raise InvalidArgument("a schedule needs a cron line or an interval: give cron or every_ms", field="cron")
        line, every_ms = was.cron, was.every_ms
    if every_ms is not None:
        if change.timezone is not None:
            raise InvalidArgument("an interval has no timezone: it is for a cron line", field="timezone")
        return None, UTC, every_ms
    zone = was.timezone if was is not None else UTC
    return line, zone if change.timezone is None else cron.parse_zone(change.timezone), None


def _check_message(message: Draft, name: str, max_payload: int) -> None:
    if message.delay_ms or message.deliver_at is not None:
        raise InvalidArgument(
            "a schedule's message is enqueued at its ticks: it has no delay and no deliver_at", field="message.delay_ms"
        )
    if message.key is not None:
        raise InvalidArgument(
            "a schedule's message has no key of its own: each tick enqueues once as it is",
            field="message.idempotency_key",
        )
    check_draft(message, min(max_payload, MAX_PAYLOAD))
    for header in (NAME_HEADER, TICK_HEADER):
        if header in message.headers:
            raise InvalidArgument(f"header {header!r} is set by the schedule itself", field="message.headers")
    check_draft(_draft_at(message, name, MAX_MS), min(max_payload, MAX_PAYLOAD))


# --- Ticks ---------------------------------------------------------------------------------------------------------


def due_tick(schedule: Schedule, now_ms: int) -> Tick | None:
    """What to fire now: of ticks that were missed the latest, and the others not at all. None: nothing is due."""
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
    """The message of one tick."""
    return _draft_at(schedule.message, schedule.name, at_ms)


def _draft_at(message: Draft, name: str, at_ms: int) -> Draft:
    return replace(message, headers={**message.headers, NAME_HEADER: name, TICK_HEADER: str(at_ms)})


def reason_of(schedule: Schedule, at_ms: int) -> str:
    """What the journal says of a message that a tick enqueued."""
    return f"schedule {schedule.name}, tick {at_ms}"


def fired(schedule: Schedule, tick: Tick, id: int) -> Schedule:
    return replace(schedule, next_at=tick.next_at, last_at=tick.at, last_id=id, last_error=None)


def check_room(ref: QueueRef, count: int) -> None:
    """Refuse another schedule for a queue that has this many."""
    if count >= MAX_SCHEDULES:
        raise OverQuota(
            f"queue {ref} has {count} schedules, which is the most", quota="max_schedules", limit=MAX_SCHEDULES
        )


def skipped(schedule: Schedule, next_at: int | None, error: str) -> Schedule:
    """A tick that enqueued nothing; `last_at` stays that of the last message."""
    return replace(schedule, next_at=next_at, last_error=error)


# --- What callers see ----------------------------------------------------------------------------------------------


def info_of(schedule: Schedule, *, with_payload: bool) -> ScheduleInfo:
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
