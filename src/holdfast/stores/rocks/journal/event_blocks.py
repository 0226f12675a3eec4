"""The format of a block of the journal: the events of one commit, in order.

A block is a MessagePack array of rows, one for each event. If many messages had the same event in one call, the block
has another form: the byte c1, which MessagePack does not use, and an array of parts. A part is either an array of rows
or a run of events of the same kind, which has the fields of a row as columns. A column is a list with a value for each
event, or a single value for all events.

How to change this format: give the new row or run another tag, keep decoding this one, and raise the format of the
store (`recovery/marker.py`).
"""

from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import msgspec

from holdfast.model.rules.lifecycle import Life
from holdfast.stores.rocks.queues.stored_message import StoredMessage

# An event: queue prefix, at, event number, id, attempt, version, priority, enqueued_at, claimed_at, bytes, error,
# reason, correlation id
Row = tuple[bytes, int, int, int, int, int, int, int, int | None, int, str | None, str | None, str | None]

V = TypeVar("V")

_HAS_PARTS = b"\xc1"


class EventRows(msgspec.Struct, array_like=True, tag=0, gc=False):
    """A part with single events."""

    rows: list[Row]

    def __len__(self) -> int:
        return len(self.rows)


class EventRun(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A part with the same event of many messages of one queue, without an error or a reason."""

    p: bytes
    at: int
    event: int
    ids: list[int]
    attempts: int | list[int]
    versions: int | list[int]
    priorities: int | list[int]
    enqueued_at: int | list[int]
    claimed_at: int | list[int | None] | None
    sizes: int | list[int]
    correlation_ids: list[str | None] | None

    @classmethod
    def of_fresh(cls, p: bytes, at: int, event: int, entries: Sequence[StoredMessage], life: Life) -> Self:
        """Return the run for an event of new messages that all have the life `life`."""
        envelopes = [entry.envelope for entry in entries]
        correlation_ids = [envelope.given_correlation_id for envelope in envelopes]
        return cls(
            p=p,
            at=at,
            event=event,
            ids=[envelope.id for envelope in envelopes],
            attempts=life.attempt,
            versions=life.version,
            priorities=life.priority,
            enqueued_at=envelopes[0].enqueued_at,
            claimed_at=None,
            sizes=_column([entry.bytes for entry in entries]),
            correlation_ids=correlation_ids if any(correlation_ids) else None,
        )

    @classmethod
    def of_changed(cls, p: bytes, at: int, event: int, entries: Sequence[StoredMessage], lives: Sequence[Life]) -> Self:
        """Return the run for an event after which the messages have the lives `lives`.

        If the event ends a lease, `claimed_at` is still the time at which that lease began.
        """
        envelopes = [entry.envelope for entry in entries]
        leases = [life.lease or entry.life.lease for entry, life in zip(entries, lives, strict=True)]
        correlation_ids = [envelope.given_correlation_id for envelope in envelopes]
        return cls(
            p=p,
            at=at,
            event=event,
            ids=[envelope.id for envelope in envelopes],
            attempts=_column([life.attempt for life in lives]),
            versions=_column([life.version for life in lives]),
            priorities=_column([life.priority for life in lives]),
            enqueued_at=_column([envelope.enqueued_at for envelope in envelopes]),
            claimed_at=_column([None if lease is None else lease.claimed_at for lease in leases]),
            sizes=_column([entry.bytes for entry in entries]),
            correlation_ids=correlation_ids if any(correlation_ids) else None,
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def rows(self) -> list[Row]:
        """Return the events as rows. Raise `ValueError` if the columns have different lengths."""
        count = len(self.ids)
        columns = zip(
            self.ids,
            _values(self.attempts, count),
            _values(self.versions, count),
            _values(self.priorities, count),
            _values(self.enqueued_at, count),
            _values(self.claimed_at, count),
            _values(self.sizes, count),
            [None] * count if self.correlation_ids is None else self.correlation_ids,
            strict=True,
        )
        return [
            (self.p, self.at, self.event, id, attempt, version, priority, enqueued_at, claimed_at, size, None, None, of)
            for id, attempt, version, priority, enqueued_at, claimed_at, size, of in columns
        ]


Part = EventRows | EventRun

_encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode
_decode_parts = msgspec.msgpack.Decoder(list[Part]).decode


def encode_rows(rows: list[Row]) -> bytes:
    """Return a block with these single events."""
    return _encode(rows)


def encode_parts(parts: list[Part]) -> bytes:
    """Return a block with these parts, in order."""
    if len(parts) == 1 and isinstance(parts[0], EventRows):
        return _encode(parts[0].rows)
    return _HAS_PARTS + _encode(parts)


def decode_rows(block: bytes) -> list[Row]:
    """Return the events of a block. Raise `msgspec.MsgspecError` if it is damaged."""
    if block[:1] != _HAS_PARTS:
        return _decode_rows(block)
    rows: list[Row] = []
    for part in _decode_parts(block[1:]):
        try:
            rows += part.rows
        except ValueError as error:
            raise msgspec.ValidationError(f"a run has columns of different lengths: {error}") from None
    return rows


def _column(values: list[V]) -> V | list[V]:
    """Return the values, or the single value if all are equal."""
    first = values[0]
    return first if values.count(first) == len(values) else values


def _values(column: V | list[V], count: int) -> list[V]:
    """Return the values of a column for `count` events."""
    return column if isinstance(column, list) else [column] * count
