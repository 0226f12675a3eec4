"""Encode and decode the results of the framed protocol's calls with array arguments.

Like the calls (`calls.py`), the results are arrays that are decoded directly into the model's types. A client that is
older than its server ignores the array elements that it does not know.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.message import Pieces
from holdfast.model.requests import StateDocument

_encode = msgspec.msgpack.Encoder().encode


def write_nothing() -> bytes:
    """Encode the result of a call that returns nothing."""
    return _encode(None)


# --- Enqueue ---------------------------------------------------------------------------------------------------------


class EnqueuedAnswer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The result of an enqueue."""

    ids: list[int]
    # One element per message, or empty if no message is a duplicate or has a given correlation id.
    duplicates: list[bool] = []
    # One element per message, or empty as above. None: the correlation id is the message's id.
    correlation_ids: list[str | None] = []


_enqueued = msgspec.msgpack.Decoder(EnqueuedAnswer)


def write_enqueued(every: Sequence[Enqueued]) -> bytes:
    """Encode the result of an enqueue."""
    ids = [each.snowflake for each in every]
    # Most messages have neither, and then the ids are the whole result.
    if not [each for each in every if each.duplicate or each.given_correlation_id]:
        return _encode((ids,))
    return _encode((ids, [each.duplicate for each in every], [each.given_correlation_id for each in every]))


def read_enqueued(body: bytes) -> list[Enqueued]:
    """Decode the result of an enqueue. Raise `msgspec.DecodeError` or `ValueError` for any other body."""
    answer = _enqueued.decode(body)
    if not answer.duplicates and not answer.correlation_ids:
        return [Enqueued(snowflake=each) for each in answer.ids]
    return [
        Enqueued(snowflake=id, duplicate=duplicate, given_correlation_id=correlation_id)
        for id, duplicate, correlation_id in zip(answer.ids, answer.duplicates, answer.correlation_ids, strict=True)
    ]


# --- Verdicts --------------------------------------------------------------------------------------------------------


class ResultIn(Result, frozen=True, kw_only=True, gc=False, array_like=True):
    """A verdict's result, as an array."""


_results = msgspec.msgpack.Decoder(list[ResultIn])
# The last field is set by clients only and is not sent.
_SENT_RESULT_FIELDS = len(Result.__struct_fields__) - 1


def write_results(every: Sequence[Result]) -> bytes:
    """Encode the results of verdicts."""
    return _encode(_results_out(every))


def read_results(body: bytes) -> list[Result]:
    """Decode the results of verdicts. Raise `msgspec.DecodeError` for any other body."""
    return list(_results.decode(body))


def _results_out(every: Sequence[Result]) -> list[tuple[Any, ...]]:
    return [astuple(each)[:_SENT_RESULT_FIELDS] for each in every]


# --- Claims ----------------------------------------------------------------------------------------------------------


class _PiecesIn(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The size and CRC-32 of a payload that the client reads part by part. Only the server knows where it is stored."""

    size: int
    checksum: int


class _StateIn(StateDocument, frozen=True, kw_only=True, array_like=True):
    pass


class DeliveryIn(Delivery, frozen=True, kw_only=True, gc=False, array_like=True):
    """A delivery, as an array."""

    pieces: _PiecesIn | None = None  # type: ignore[assignment]  # `_delivery_of` replaces it with the model's type
    state: _StateIn | None = None


class ClaimAnswer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The result of `claim` and `exchange`, and of each ITEM of `subscribe`."""

    deliveries: list[DeliveryIn]
    # The results of an exchange's verdicts.
    results: list[ResultIn] = []


_claimed = msgspec.msgpack.Decoder(ClaimAnswer)


def write_claimed(deliveries: Sequence[Delivery], results: Sequence[Result] = ()) -> bytes:
    """Encode the result of a claim, of an exchange or of an ITEM."""
    rows = [_delivery_out(each) for each in deliveries]
    return _encode((rows, _results_out(results)) if results else (rows,))


def read_claimed(body: bytes) -> Exchanged:
    """Decode the result of a claim, of an exchange or of an ITEM. Raise `msgspec.DecodeError` for any other body."""
    answer = _claimed.decode(body)
    return Exchanged(list(answer.results), [_delivery_of(each) for each in answer.deliveries])


def _delivery_out(delivery: Delivery) -> tuple[Any, ...]:
    row = astuple(delivery)
    pieces, state = delivery.pieces, delivery.state
    if pieces is None and state is None:
        return row
    return (
        *row[:_PIECES],
        None if pieces is None else (pieces.size, pieces.checksum),
        *row[_PIECES + 1 : _STATE],
        None if state is None else astuple(state),
    )


def _delivery_of(given: DeliveryIn) -> Delivery:
    pieces = given.pieces
    return given if pieces is None else replace(given, pieces=Pieces(0, pieces.size, pieces.checksum))


_PIECES = Delivery.__struct_fields__.index("pieces")
_STATE = Delivery.__struct_fields__.index("state")

# --- Payloads --------------------------------------------------------------------------------------------------------

_part = msgspec.msgpack.Decoder(PayloadPart)


def write_part(part: PayloadPart) -> bytes:
    """Encode a part of a payload."""
    return _encode(part)


def read_part(body: bytes) -> PayloadPart:
    """Decode a part of a payload. Raise `msgspec.DecodeError` for any other body."""
    return _part.decode(body)
