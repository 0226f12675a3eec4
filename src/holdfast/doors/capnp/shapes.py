"""Convert between Cap'n Proto structs and the model.

Readers and builders are pycapnp objects. pycapnp has no types, so they are `Any`.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.model import ids
from holdfast.model.answers import Delivery, Enqueued, QueueSummary, Result, Stats
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import BYTES, JSON, Draft, Receipt, normalise_correlation_id
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.http.bodies import encode
from holdfast.wire.http.shapes import state_out

_FORMS = {"typed": None, "json": True, "bytes": False}


# --- In ------------------------------------------------------------------------------------------------------------


def drafts_of(add: Any, correlation_id: str | None) -> list[Draft]:
    """Return the new messages of an `add`. Raise `InvalidArgument` if the number of options does not fit.

    `correlation_id` is the call's, for messages that have none of their own.
    """
    items = add.items
    options: Any = add.options if add._has("options") else ()
    if not len(options):
        return [Draft(payload=item, correlation_id=correlation_id) for item in items]
    if len(options) == 1:
        fields = _options_of(options[0], correlation_id)
        return [Draft(payload=item, **fields) for item in items]
    if len(options) != len(items):
        raise InvalidArgument(
            f"there are {len(options)} options for {len(items)} items; give none, one for all items, or one for each",
            field="options",
        )
    return [Draft(payload=item, **_options_of(own, correlation_id)) for item, own in zip(items, options, strict=True)]


def draft_with(options: Any, correlation_id: str | None) -> Draft:
    """Return the new message of an upload, without its payload."""
    return Draft(payload=b"", **_options_of(options, correlation_id))


def _options_of(options: Any, correlation_id: str | None) -> dict[str, Any]:
    is_json = _FORMS[str(options.form)]
    own = normalise_correlation_id(options.correlationId) if options.correlationId else None
    return {
        "content_type": options.contentType or (JSON if is_json else BYTES),
        "is_json": is_json,
        "headers": {header.name: header.value for header in options.headers},
        "priority": options.priority,
        "delay_ms": options.delayMs,
        "deliver_at": _known(options.deliverAt),
        "ttl_ms": options.ttlMs or None,
        "key": options.key or None,
        "group": options.group or None,
        "correlation_id": own or correlation_id,
        "max_retries": _known(options.maxRetries),
    }


def claim_request_of(poll: Any) -> ClaimRequest:
    """Return the claim that a `poll` asks for."""
    return ClaimRequest(
        limit=poll.numItems or 1,
        lease_ms=poll.leaseMs or None,
        owner=poll.owner or None,
        with_state=poll.withState,
        ledger=(poll.consumer, poll.number) if poll.consumer else None,
        streams=poll.streams,
    )


def verdict_of(verdict: Any, receipt: Receipt) -> Verdict:
    """Return a verdict of the schema, on the message of `receipt`."""
    return Verdict(
        settle=Settle(str(verdict.kind)),
        receipt=receipt,
        error=verdict.error if verdict._has("error") else None,
        delay_ms=_known(verdict.delayMs),
        defer=verdict.defer,
        final=verdict.final,
        exhausted=verdict.exhausted,
        lease_ms=verdict.leaseMs or None,
    )


def id_of(data: bytes) -> int:
    """Return a message id. Raise `InvalidArgument` if it does not have 16 bytes."""
    if len(data) != 16:
        raise InvalidArgument(f"messageId has {len(data)} bytes, not 16; give an id that add returned")
    return ids.from_bytes(data)


def _known(number: int) -> int | None:
    return None if number == -1 else number


# --- Out -----------------------------------------------------------------------------------------------------------


def write_enqueued(results: Any, every: Sequence[Enqueued]) -> None:
    """Write the results of an enqueue."""
    snowflakes = [each.snowflake for each in every]
    results.ids = list(map(ids.to_bytes, snowflakes))
    results.snowflakes = snowflakes
    # Most messages are no duplicates and have no given correlation id. One pass finds that out.
    if not [each for each in every if each.duplicate or each.given_correlation_id]:
        return
    duplicates = [each.duplicate for each in every]
    if True in duplicates:
        results.duplicates = duplicates
    if any(each.given_correlation_id for each in every):
        results.correlationIds = [each.correlation_id for each in every]


def write_deliveries(results: Any, every: Sequence[Delivery]) -> None:
    """Write claimed messages."""
    messages = results.init("messages", len(every))
    for message, delivery in zip(messages, every, strict=True):
        message.id = ids.to_bytes(delivery.snowflake)
        message.contents = delivery.payload
        message.receipt = str(delivery.receipt)
        message.snowflake = delivery.snowflake
        message.attempt = delivery.attempt
        message.version = delivery.receipt.version
        message.priority = delivery.priority
        message.enqueuedAt = delivery.enqueued_at
        message.leaseExpiresAt = delivery.lease_expires_at
        message.contentType = delivery.content_type
        message.correlationId = delivery.correlation_id
        message.isJson = delivery.is_json
        if delivery.group is not None:
            message.group = delivery.group
        if delivery.headers:
            message.headers = [{"name": name, "value": value} for name, value in delivery.headers.items()]
        if delivery.state is not None:
            message.state = encode(state_out(delivery.state))
        if delivery.pieces is not None:
            message.isApart = True
            message.payloadBytes = delivery.pieces.size
            message.payloadCrc32 = delivery.pieces.checksum


def write_results(answer: Any, every: Sequence[Result]) -> None:
    """Write the results of verdicts."""
    for out, result in zip(answer.init("results", len(every)), every, strict=True):
        out.id = ids.to_bytes(result.snowflake)
        out.snowflake = result.snowflake
        out.ok = result.ok
        if result.correlation_id is not None:
            out.correlationId = result.correlation_id
        if result.error is not None:
            out.error = result.error
        if result.state is not None:
            out.state = result.state.value
        if result.retry_at is not None:
            out.retryAt = result.retry_at
        if result.lease_expires_at is not None:
            out.leaseExpiresAt = result.lease_expires_at


def write_stats(out: Any, stats: Stats) -> None:
    """Write the counts of a queue, and its name if `stats` has it."""
    out.ready = stats.ready
    out.delayed = stats.delayed
    out.inFlight = stats.in_flight
    out.failed = stats.failed
    out.bytes = stats.bytes
    out.oldestReadyAgeMs = stats.oldest_ready_age_ms
    out.waiters = stats.waiters
    out.paused = stats.paused
    out.draining = stats.draining
    if isinstance(stats, QueueSummary):
        out.queue = stats.queue
