"""Conversions between the model and the structs of Cap'n Proto, as a client needs them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.model import ids
from holdfast.model.answers import Delivery, Enqueued, QueueSummary, Result, Stats
from holdfast.model.message import BYTES, DEFAULT_PRIORITY, Draft, Pieces, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, StateDocument, Verdict
from holdfast.wire.capnp.schema import FOR_EVER
from holdfast.wire.http.bodies import StateOut

_state = msgspec.json.Decoder(StateOut)


# --- Out -----------------------------------------------------------------------------------------------------------


def write_ref(request: Any, ref: QueueRef) -> None:
    """Write the names of a queue."""
    given = request.init("ref")
    given.tenant, given.queue = ref


def write_drafts(add: Any, drafts: Sequence[Draft]) -> None:
    """Write messages. Options that all messages share are written once, and defaults are not written."""
    add.items = [draft.payload for draft in drafts]
    every = [_options_of(draft) for draft in drafts]
    if all(options == every[0] for options in every):
        every = every[:1] if every and every[0] else []
    for out, options in zip(add.init("options", len(every)), every, strict=True):
        _write_options(out, options)


def write_draft(upload: Any, draft: Draft) -> None:
    """Write the message of an upload, without its payload."""
    _write_options(upload.init("options"), _options_of(draft))


def _options_of(draft: Draft) -> dict[str, Any]:
    """Return the options that differ from the defaults."""
    options: dict[str, Any] = {}
    if draft.priority != DEFAULT_PRIORITY:
        options["priority"] = draft.priority
    if draft.delay_ms:
        options["delayMs"] = draft.delay_ms
    if draft.deliver_at is not None:
        options["deliverAt"] = draft.deliver_at
    if draft.ttl_ms is not None:
        options["ttlMs"] = draft.ttl_ms
    if draft.max_retries is not None:
        options["maxRetries"] = draft.max_retries
    if draft.key is not None:
        options["key"] = draft.key
    if draft.group is not None:
        options["group"] = draft.group
    if draft.content_type != BYTES:
        options["contentType"] = draft.content_type
    if draft.correlation_id is not None:
        options["correlationId"] = draft.correlation_id
    if draft.headers:
        options["headers"] = [{"name": name, "value": value} for name, value in draft.headers.items()]
    if draft.is_json is not None:
        options["form"] = "json" if draft.is_json else "bytes"
    return options


def _write_options(out: Any, options: dict[str, Any]) -> None:
    for name, value in options.items():
        setattr(out, name, value)


def write_ask(poll: Any, ask: ClaimRequest, wait_ms: int | None) -> None:
    """Write a claim request."""
    poll.numItems = ask.limit
    poll.waitMs = FOR_EVER if wait_ms is None else wait_ms
    poll.leaseMs = ask.lease_ms or 0
    if ask.owner is not None:
        poll.owner = ask.owner
    poll.withState = ask.with_state
    poll.streams = ask.streams
    if ask.ledger is not None:
        poll.consumer, poll.number = ask.ledger


def write_verdicts(request: Any, verdicts: Sequence[Verdict]) -> None:
    """Write verdicts."""
    for out, verdict in zip(request.init("verdicts", len(verdicts)), verdicts, strict=True):
        out.kind = verdict.settle.value
        out.receipt = str(verdict.receipt)
        if verdict.settle is Settle.ACK:
            continue
        if verdict.error is not None:
            out.error = verdict.error
        if verdict.delay_ms is not None:
            out.delayMs = verdict.delay_ms
        out.defer = verdict.defer
        out.final = verdict.final
        out.exhausted = verdict.exhausted
        out.leaseMs = verdict.lease_ms or 0


# --- In ------------------------------------------------------------------------------------------------------------


def enqueued_of(added: Any) -> list[Enqueued]:
    """Return the results of an enqueue."""
    snowflakes = list(added.snowflakes)
    duplicates = list(added.duplicates) or [False] * len(snowflakes)
    correlation_ids = list(added.correlationIds) or [None] * len(snowflakes)
    return [
        Enqueued(snowflake=snowflake, given_correlation_id=_given(snowflake, correlation_id), duplicate=duplicate)
        for snowflake, correlation_id, duplicate in zip(snowflakes, correlation_ids, duplicates, strict=True)
    ]


def deliveries_of(polled: Any) -> list[Delivery]:
    """Return the deliveries of a claim."""
    return [_delivery_of(message) for message in polled.messages]


def _delivery_of(message: Any) -> Delivery:
    snowflake = message.snowflake
    return Delivery(
        snowflake=snowflake,
        given_correlation_id=_given(snowflake, message.correlationId),
        receipt=Receipt.parse(message.receipt),
        payload=message.contents,
        pieces=Pieces(0, message.payloadBytes, message.payloadCrc32) if message.isApart else None,
        content_type=message.contentType,
        is_json=message.isJson,
        headers={header.name: header.value for header in message.headers},
        priority=message.priority,
        attempt=message.attempt,
        enqueued_at=message.enqueuedAt,
        lease_expires_at=message.leaseExpiresAt,
        group=message.group or None,
        state=_state_of(message.state) if message.state else None,
    )


def _state_of(data: bytes) -> StateDocument:
    out = _state.decode(data)
    return StateDocument(
        document=None if out.etag is None else bytes(out.document),
        etag=out.etag,
        progress=None if out.progress is UNSET else out.progress,
    )


def results_of(response: Any) -> list[Result]:
    """Return the results of verdicts."""
    return [_result_of(result) for result in response.results]


def _result_of(result: Any) -> Result:
    snowflake = result.snowflake
    return Result(
        snowflake=snowflake,
        ok=result.ok,
        given_correlation_id=_given(snowflake, result.correlationId) if result.correlationId else None,
        is_known=bool(result.correlationId),
        error=result.error or None,
        state=State(result.state) if result.state else None,
        retry_at=None if result.retryAt == -1 else result.retryAt,
        lease_expires_at=None if result.leaseExpiresAt == -1 else result.leaseExpiresAt,
    )


def stats_of(stats: Any) -> Stats:
    """Return the counts of a queue."""
    return Stats(**_counts_of(stats))


def summary_of(stats: Any) -> QueueSummary:
    """Return a queue in a listing."""
    return QueueSummary(queue=stats.queue, **_counts_of(stats))


def _counts_of(stats: Any) -> dict[str, Any]:
    return {
        "ready": stats.ready,
        "delayed": stats.delayed,
        "in_flight": stats.inFlight,
        "failed": stats.failed,
        "bytes": stats.bytes,
        "oldest_ready_age_ms": stats.oldestReadyAgeMs,
        "waiters": stats.waiters,
        "paused": stats.paused,
        "draining": stats.draining,
    }


def _given(snowflake: int, correlation_id: str | None) -> str | None:
    return None if not correlation_id or correlation_id == ids.to_uuid(snowflake) else correlation_id
