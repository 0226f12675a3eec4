"""Stored rows and counts, converted to the structs of look-ups."""

import msgspec

from holdfast.model.answers import Counts, Found, Info, Stats
from holdfast.model.ids import to_uuid
from holdfast.stores.values import QueueRow


def stats_of(counts: Counts, now_ms: int, *, waiters: int, row: QueueRow | None = None) -> Stats:
    """Return the stats of a queue, or those of a tenant if `row` is None; a tenant is neither paused nor draining."""
    return Stats(
        ready=counts.ready,
        delayed=counts.delayed,
        in_flight=counts.in_flight,
        failed=counts.failed,
        bytes=counts.bytes,
        oldest_ready_age_ms=counts.oldest_ready_age_ms(now_ms),
        waiters=waiters,
        paused=row is not None and row.is_paused,
        draining=row is not None and row.drain_until is not None,
        legacy_left=msgspec.UNSET if counts.legacy_left is None else counts.legacy_left,
    )


def info_of(found: Found, *, with_payload: bool = False) -> Info:
    """Return a stored message as look-ups show it."""
    envelope, life = found.envelope, found.life
    return Info(
        id=to_uuid(envelope.id),
        snowflake=envelope.id,
        state=life.state,
        priority=life.priority,
        attempt=life.attempt,
        failures=life.failures,
        expiries=life.expiries,
        releases=life.releases,
        version=life.version,
        enqueued_at=envelope.enqueued_at,
        visible_at=life.visible_at,
        lease_expires_at=life.lease.expires_at if life.lease else None,
        last_error=life.error,
        reason=life.reason,
        correlation_id=envelope.correlation_id,
        headers=dict(envelope.headers),
        content_type=envelope.content_type,
        group=envelope.group,
        owner=life.lease.owner if life.lease else None,
        claimed_at=life.lease.claimed_at if life.lease else None,
        settled_at=life.settled_at,
        expires_at=life.expires_at,
        progress=found.state.progress,
        payload=envelope.payload if with_payload else None,
        is_json=envelope.is_json,
        bytes=envelope.bytes,
    )
