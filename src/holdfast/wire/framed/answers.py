"""The answers of the framed protocol to the calls that every message goes through: arrays, both ways.

They are read straight into the model's types, as calls are (`framed_calls.py`). A client that is older than its server
reads the places that it knows.
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
    """Return the answer of a call that has nothing to say."""
    return _encode(None)


# --- Enqueue ---------------------------------------------------------------------------------------------------------


class EnqueuedAnswer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    ids: list[int]
    # For each message, or empty if there are none.
    duplicates: list[bool] = []
    # Those that were given. None: the id's own text.
    correlation_ids: list[str | None] = []


_enqueued = msgspec.msgpack.Decoder(EnqueuedAnswer)


def write_enqueued(every: Sequence[Enqueued]) -> bytes:
    ids = [each.snowflake for each in every]
    # There is no more to say of most, which is found out in one pass.
    if not [each for each in every if each.duplicate or each.given_correlation_id]:
        return _encode((ids,))
    return _encode((ids, [each.duplicate for each in every], [each.given_correlation_id for each in every]))


def read_enqueued(body: bytes) -> list[Enqueued]:
    """Raise `msgspec.DecodeError` or `ValueError` for anything else."""
    answer = _enqueued.decode(body)
    if not answer.duplicates and not answer.correlation_ids:
        return [Enqueued(snowflake=each) for each in answer.ids]
    return [
        Enqueued(snowflake=id, duplicate=duplicate, given_correlation_id=correlation_id)
        for id, duplicate, correlation_id in zip(answer.ids, answer.duplicates, answer.correlation_ids, strict=True)
    ]


# --- Verdicts --------------------------------------------------------------------------------------------------------


class ResultIn(Result, frozen=True, kw_only=True, gc=False, array_like=True):
    pass


_results = msgspec.msgpack.Decoder(list[ResultIn])
# The last field is the client's own.
_RESULT_PLACES = len(Result.__struct_fields__) - 1


def write_results(every: Sequence[Result]) -> bytes:
    return _encode(_results_out(every))


def read_results(body: bytes) -> list[Result]:
    """Raise `msgspec.DecodeError` for anything else."""
    return list(_results.decode(body))


def _results_out(every: Sequence[Result]) -> list[tuple[Any, ...]]:
    return [astuple(each)[:_RESULT_PLACES] for each in every]


# --- Claims ----------------------------------------------------------------------------------------------------------


class _PiecesIn(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A payload that is read part by part. Where it is kept is the server's to know."""

    size: int
    checksum: int


class _StateIn(StateDocument, frozen=True, kw_only=True, array_like=True):
    pass


class DeliveryIn(Delivery, frozen=True, kw_only=True, gc=False, array_like=True):
    pieces: _PiecesIn | None = None  # type: ignore[assignment]  # becomes the model's once it is read
    state: _StateIn | None = None


class ClaimAnswer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to `claim` and `exchange`, and each ITEM of `subscribe`."""

    deliveries: list[DeliveryIn]
    # Of the verdicts of an exchange.
    results: list[ResultIn] = []


_claimed = msgspec.msgpack.Decoder(ClaimAnswer)


def write_claimed(deliveries: Sequence[Delivery], results: Sequence[Result] = ()) -> bytes:
    forms = [_delivery_out(each) for each in deliveries]
    return _encode((forms, _results_out(results)) if results else (forms,))


def read_claimed(body: bytes) -> Exchanged:
    """Raise `msgspec.DecodeError` for anything else."""
    answer = _claimed.decode(body)
    return Exchanged(list(answer.results), [_delivery_of(each) for each in answer.deliveries])


def _delivery_out(delivery: Delivery) -> tuple[Any, ...]:
    form = astuple(delivery)
    pieces, state = delivery.pieces, delivery.state
    if pieces is None and state is None:
        return form
    return (
        *form[:_PIECES],
        None if pieces is None else (pieces.size, pieces.checksum),
        *form[_PIECES + 1 : _STATE],
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
    return _encode(part)


def read_part(body: bytes) -> PayloadPart:
    """Raise `msgspec.DecodeError` for anything else."""
    return _part.decode(body)
