"""Get the content of large answers only while there is room for them on their connection."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from zlib import crc32

from msgspec.structs import replace

from holdfast.clock import steady_s
from holdfast.doors.capnp.calls import CapnpCall
from holdfast.model.answers import Delivery
from holdfast.model.errors import PayloadTooLarge
from holdfast.model.message import Pieces
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest

T = TypeVar("T")

# About the bytes of a delivery in an answer, besides its payload, its headers and its state.
_DELIVERY_BYTES = 400


async def read_with_room(call: CapnpCall, read: Callable[[], Awaitable[T]], size_of: Callable[[T], int]) -> T:
    """Return what `read` returns, once there is room for its `size_of` bytes. `read` may be called several times.

    Raise `PayloadTooLarge` if one answer may not be so large.
    """
    connection = call.connection
    room = connection.room
    while True:
        if not room.is_contended:
            content = await read()
            size = size_of(content)
            check_size(size, connection.door.max_answer_bytes)
            if room.take(size):
                return content
            del content  # it would be in memory while it waits
        async with room.turn():
            content = await read()
            size = size_of(content)
            check_size(size, connection.door.max_answer_bytes)
            if room.take(size):
                return content
        del content


def check_size(size: int, limit: int) -> None:
    """Raise `PayloadTooLarge` if an answer is larger than `limit`."""
    if size > limit:
        raise PayloadTooLarge(
            f"the answer has {size:,} bytes, and one answer may have {limit:,}: ask for less at once",
            bytes=size,
            limit=limit,
        )


async def claim_with_room(
    call: CapnpCall,
    ref: QueueRef,
    request: ClaimRequest,
    claim: Callable[[int | None], Awaitable[list[Delivery]]],
    wait_ms: int | None,
) -> list[Delivery]:
    """Return the deliveries of a claim that waits up to `wait_ms`, once there is room for them.

    Deliveries for which there is no room, or too many for one answer, are given back uncounted. `claim` is called with
    the time to wait, perhaps several times.
    """
    room = call.connection.room
    started_s = steady_s()

    async def attempt(wait_ms: int | None) -> list[Delivery] | None:
        deliveries = _fit(call, ref, request, await claim(wait_ms))
        if not deliveries or room.take(sum(map(_size_of, deliveries))):
            return deliveries
        _give_back(call, ref, request, deliveries)
        return None

    taken = None if room.is_contended else await attempt(wait_ms)
    while taken is None:
        async with room.turn():
            # A call that has its turn must not wait for messages: the calls behind it may have some.
            taken = await attempt(0)
        if not taken and taken is not None and wait_ms != 0:
            spent_ms = int((steady_s() - started_s) * 1_000)
            taken = await attempt(None if wait_ms is None else max(0, wait_ms - spent_ms))
    return taken


def take_room(call: CapnpCall, ref: QueueRef, request: ClaimRequest, deliveries: list[Delivery]) -> list[Delivery]:
    """Return the deliveries that fit into one answer, or none if there is no room for them. The others are given back.

    Those of a claim with a ledger are returned in any case: their caller could not tell that there are some.
    """
    fitting = _fit(call, ref, request, deliveries)
    if call.connection.room.take(sum(map(_size_of, fitting))) or request.ledger is not None:
        return fitting
    _give_back(call, ref, request, fitting)
    return []


def _fit(call: CapnpCall, ref: QueueRef, request: ClaimRequest, deliveries: list[Delivery]) -> list[Delivery]:
    """Return the deliveries that fit into one answer, at least one. The others are given back uncounted.

    The deliveries of a claim with a ledger all stay claimed. Those that do not fit come without their payloads, which
    the caller reads by its receipts. Raise `PayloadTooLarge` if the caller did not ask for such payloads.
    """
    limit = call.connection.door.max_bytes
    size = 0
    for number, delivery in enumerate(deliveries):
        size += _size_of(delivery)
        if size > limit and number:
            if request.ledger is None:
                _give_back(call, ref, request, deliveries[number:])
                return deliveries[:number]
            if not request.streams:
                raise PayloadTooLarge(
                    f"the messages of this claim have more than {limit:,} bytes: poll it again with `streams`, and "
                    "read their payloads by readPart",
                    limit=limit,
                )
            return [*deliveries[:number], *map(_without_payload, deliveries[number:])]
    return deliveries


def _give_back(call: CapnpCall, ref: QueueRef, request: ClaimRequest, deliveries: Sequence[Delivery]) -> None:
    """Give deliveries back, except those of a ledger claim, which its caller reads again by its number."""
    if request.ledger is None:
        call.session.give_back(ref, list(deliveries))


def _size_of(delivery: Delivery) -> int:
    size = _DELIVERY_BYTES + len(delivery.payload)
    for name, value in delivery.headers.items():
        size += len(name) + len(value)
    if delivery.state is not None and delivery.state.document is not None:
        size += len(delivery.state.document)
    return size


def _without_payload(delivery: Delivery) -> Delivery:
    if delivery.pieces is not None:
        return delivery
    payload = delivery.payload
    return replace(delivery, payload=b"", pieces=Pieces(0, len(payload), crc32(payload)))
