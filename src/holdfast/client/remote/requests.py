"""Checks and conversions of requests before they are sent, and exchanges that wait."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from holdfast.client.payloads.encoding import encode_json
from holdfast.model.answers import Delivery, Exchanged
from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import ClaimRequest, Verdict, check_claim_request, check_verdicts
from holdfast.wire.operation import Operation
from holdfast.wire.operations import BACKUP
from holdfast.wire.requests import ConfigureRequest

R = TypeVar("R")
T = TypeVar("T")

_changes = msgspec.json.Decoder(dict[str, msgspec.Raw])


def prepare_request(operation: Operation[R, Any], request: R) -> R:
    """Return the request in a form that can be encoded. Raise `InvalidArgument` for a backup, which is local only."""
    if operation is BACKUP:
        raise InvalidArgument(
            "a backup is not made over the network: run `holdfast backup DIR TARGET` on the server's machine, even "
            "while the server runs",
            field="target",
        )
    if isinstance(request, ConfigureRequest):
        # The changes follow the rules of payloads, because a NaN would be encoded as null, which means unlimited.
        plain = {
            name: asdict(value) if isinstance(value, msgspec.Struct) else value
            for name, value in request.changes.items()
        }
        return replace(request, changes=_changes.decode(encode_json(plain)))
    return request


def encode_request(operation: Operation[R, Any], write: Callable[[], T]) -> T:
    """Return the request encoded by `write`. Raise `InvalidArgument` if it has values that cannot be encoded."""
    try:
        return write()
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{operation.name} cannot be sent: {error}") from None


def check_exchange(verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None) -> None:
    """Raise `InvalidArgument` for a malformed exchange, before anything is sent."""
    check_claim_request(ask)
    check_verdicts(verdicts, field="verdicts")
    if wait_ms is not None:
        check_integer("wait", wait_ms, 0, MAX_MS)


async def add_waited_claim(
    exchanged: Exchanged, wait_ms: int | None, claim: Callable[[], Awaitable[list[Delivery]]]
) -> Exchanged:
    """Return an exchange; if it has no messages yet, add those of `claim`, which waits.

    If that claim fails, return the results alone, because the verdicts are settled and the caller needs their results.
    """
    if exchanged.deliveries or wait_ms == 0:
        return exchanged
    try:
        return exchanged._replace(deliveries=await claim())
    except HoldfastError:
        if not exchanged.results:
            raise
        return exchanged
