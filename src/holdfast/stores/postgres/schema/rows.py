"""Convert rows of `items` to messages and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.model.answers import Delivery, Found
from holdfast.model.events import Event
from holdfast.model.message import BYTES, JSON, Draft, Envelope, Pieces, Receipt, State
from holdfast.model.requests import NO_STATE, StateDocument
from holdfast.model.rules.lifecycle import Lease, Life

READY, IN_FLIGHT, SUCCEEDED, FAILED, BEHIND, DELAYED = range(6)
WAITING = (READY, BEHIND, DELAYED)

STATES = {
    READY: State.READY,
    IN_FLIGHT: State.IN_FLIGHT,
    SUCCEEDED: State.SUCCEEDED,
    FAILED: State.FAILED,
    BEHIND: State.READY,
    DELAYED: State.READY,
}
STATUSES = {
    State.READY: WAITING,
    State.IN_FLIGHT: (IN_FLIGHT,),
    State.SUCCEEDED: (SUCCEEDED,),
    State.FAILED: (FAILED,),
}
# The position is the event's number in the journal: never reorder.
EVENTS = (
    *(Event.ENQUEUED, Event.CLAIMED, Event.SUCCEEDED, Event.RETRIED, Event.FAILED, Event.EXPIRED, Event.RELEASED),
    *(Event.EXTENDED, Event.REDRIVEN, Event.REMOVED, Event.MOVED),
)
EVENT_NUMBERS = {event: number for number, event in enumerate(EVENTS)}

# The two most common content types are stored as NULL and `json`.
_TYPES = {BYTES: None, JSON: "json"}

_encode = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_state = msgspec.msgpack.Decoder(StateDocument).decode


@dataclass(slots=True)
class MessageRow:
    """A stored message as a step reads and changes it. Its payload is empty unless the payload was read too."""

    envelope: Envelope
    life: Life
    bytes: int
    status: int
    state: StateDocument = NO_STATE


def decode_row(row: Any) -> MessageRow:
    """Return the message of a row with the columns LIFE."""
    return MessageRow(_envelope(row, b""), _life(row), row["bytes"], row["status"])


def decode_whole_row(row: Any) -> MessageRow:
    """Return the message of a row with the columns WHOLE."""
    state = NO_STATE if row["state"] is None else decode_state(row["state"])
    return MessageRow(_envelope(row, row["payload"]), _life(row), row["bytes"], row["status"], state)


def decode_found(row: Any) -> Found:
    """Return a row with the columns WHOLE as the contract's `Found`."""
    entry = decode_whole_row(row)
    return Found(entry.envelope, entry.life, entry.state)


def decode_deliveries(rows: Sequence[Any], *, with_state: bool) -> list[Delivery]:
    """Return deliveries of rows of the statement `claim`, each with a message. Columns are read by position: reading by
    name would search each row a dozen times."""
    deliveries: list[Delivery] = []
    for row in rows:
        # fmt: off
        (
            _now, _is_paused, _drain_until, _has_groups, _is_due, _delayed_at, _leased_at, _ready_at, _blob_id,
            id, priority, attempt, version, token, lease_expires_at, created_at, _bytes, is_json,
            content_type, headers, group, correlation_id, state, payload, blob_id, size, checksum,
        ) = row
        # fmt: on
        deliveries.append(
            Delivery(
                snowflake=id,
                given_correlation_id=correlation_id,
                receipt=Receipt(id, token, version),
                payload=payload,
                pieces=None if blob_id is None else Pieces(blob_id, size, checksum),
                content_type=BYTES if content_type is None else decode_type(content_type),
                is_json=is_json,
                headers=_decode_headers(headers) if headers else {},
                priority=priority,
                attempt=attempt,
                enqueued_at=created_at,
                lease_expires_at=lease_expires_at,
                group=group,
                state=None if not with_state else NO_STATE if state is None else decode_state(state),
            )
        )
    return deliveries


def encode_headers(headers: dict[str, str]) -> bytes | None:
    """Encode headers; None for none."""
    return _encode(headers) if headers else None


def is_json(draft: Draft) -> bool:
    """Return whether the draft's payload is JSON: as the draft says, else by its content type."""
    return draft.content_type == JSON if draft.is_json is None else draft.is_json


def encode_type(content_type: str) -> str | None:
    """Encode a content type."""
    return _TYPES.get(content_type, content_type)


def decode_type(stored: str | None) -> str:
    """Decode a content type."""
    return BYTES if stored is None else JSON if stored == "json" else stored


def encode_state(state: StateDocument) -> bytes:
    """Encode a state document."""
    return _encode(state)


def decode_state(raw: bytes) -> StateDocument:
    """Decode a state document."""
    return _decode_state(raw)


def encode_error(error: str | None) -> bytes | None:
    """Encode an error's text, which may contain NUL, as bytes."""
    return None if error is None else error.encode()


def decode_error(raw: bytes | None) -> str | None:
    """Decode an error's text."""
    return None if raw is None else raw.decode()


def encode_drafts(drafts: list[Draft], ids: Sequence[int], default_ttl_ms: int | None) -> list[list[Any]]:
    """Return the arguments of `enqueue` from $6 on."""
    ttls = [draft.ttl_ms for draft in drafts]
    return [
        list(ids),
        [draft.payload for draft in drafts],
        [draft.priority for draft in drafts],
        [draft.delay_ms for draft in drafts],
        _filled([draft.deliver_at for draft in drafts]),
        _filled(ttls if default_ttl_ms is None else [default_ttl_ms if ttl is None else ttl for ttl in ttls]),
        _filled(ttls),
        [draft.bytes for draft in drafts],
        [is_json(draft) for draft in drafts],
        _filled([_TYPES.get(draft.content_type, draft.content_type) for draft in drafts]),
        _filled([_encode(draft.headers) if draft.headers else None for draft in drafts]),
        _filled([draft.group for draft in drafts]),
        _filled([draft.correlation_id for draft in drafts]),
        _filled([draft.max_retries for draft in drafts]),
    ]


def _filled(column: list[Any]) -> list[Any]:
    """Return an empty column in place of one that is all null: `unnest` fills short columns with NULL, and the driver
    looks at each array element twice before it is written."""
    return [] if column.count(None) == len(column) else column


def encode_lives(lives: list[tuple[int, int, Life]]) -> list[list[Any]]:
    """Return the arguments of `change` from $2 on, for messages given as (id, status, life)."""
    leases = [life.lease for _, _, life in lives]
    return [
        [id for id, _, _ in lives],
        [status for _, status, _ in lives],
        [life.priority for _, _, life in lives],
        [life.visible_at for _, _, life in lives],
        [life.expires_at for _, _, life in lives],
        [life.attempt for _, _, life in lives],
        [life.failures for _, _, life in lives],
        [life.expiries for _, _, life in lives],
        [life.releases for _, _, life in lives],
        [life.version for _, _, life in lives],
        [lease and lease.token for lease in leases],
        [lease and lease.claimed_at for lease in leases],
        [lease and lease.expires_at for lease in leases],
        [lease and lease.ends_at for lease in leases],
        [lease and lease.owner for lease in leases],
        [lease and lease.ledger and lease.ledger[0] for lease in leases],
        [lease.ledger[1] if lease and lease.ledger else None for lease in leases],
        [encode_error(life.error) for _, _, life in lives],
        [life.reason for _, _, life in lives],
        [life.settled_at for _, _, life in lives],
        [life.keep_until for _, _, life in lives],
    ]


def _envelope(row: Any, payload: bytes) -> Envelope:
    headers = row["headers"]
    blob_id = row["piece_place"]
    return Envelope(
        id=row["id"],
        enqueued_at=row["created_at"],
        payload=payload,
        pieces=None if blob_id is None else Pieces(blob_id, row["piece_size"], row["piece_checksum"]),
        content_type=decode_type(row["content_type"]),
        headers=_decode_headers(headers) if headers else {},
        ttl_ms=row["ttl_ms"],
        group=row["group_name"],
        given_correlation_id=row["correlation_id"],
        max_retries=row["max_retries"],
        is_json=row["is_json"],
    )


def _life(row: Any) -> Life:
    lease = None
    if row["status"] == IN_FLIGHT:
        consumer = row["consumer"]
        lease = Lease(
            token=row["lease_token"],
            claimed_at=row["claimed_at"],
            expires_at=row["lease_expires_at"],
            ends_at=row["lease_ends_at"],
            owner=row["owner"],
            ledger=None if consumer is None else (consumer, row["ledger_number"]),
        )
    return Life(
        state=STATES[row["status"]],
        priority=row["priority"],
        visible_at=row["deliver_after"],
        expires_at=row["expires_at"],
        attempt=row["attempt"],
        failures=row["failures"],
        expiries=row["expiries"],
        releases=row["releases"],
        version=row["version"],
        lease=lease,
        error=decode_error(row["error"]),
        reason=row["reason"],
        settled_at=row["settled_at"],
        keep_until=row["keep_until"],
    )
