"""The parts that both remote clients share: requests made ready to be sent, and exchanges that wait."""

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


def prepared(operation: Operation[R, Any], request: R) -> R:
    """Return the request as it can be written. Raise `InvalidArgument` for an operation that no wire carries."""
    if operation is BACKUP:
        raise InvalidArgument(
            "a backup is written where the store is: run `holdfast backup DIR TARGET` on the server's machine, which "
            "needs no stop of the server",
            field="target",
        )
    if isinstance(request, ConfigureRequest):
        # By the rules of payloads: a NaN would pass for null, which means unlimited.
        plain = {
            name: asdict(value) if isinstance(value, msgspec.Struct) else value
            for name, value in request.changes.items()
        }
        return replace(request, changes=_changes.decode(encode_json(plain)))
    return request


def written(operation: Operation[R, Any], write: Callable[[], T]) -> T:
    """Return the request as `write` writes it. Raise `InvalidArgument` if it has values that no wire can hold."""
    try:
        return write()
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{operation.name} cannot be sent: {error}") from None


def check_exchange(verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None) -> None:
    """Refuse a malformed exchange before anything is sent."""
    check_claim_request(ask)
    check_verdicts(verdicts, field="verdicts")
    if wait_ms is not None:
        check_integer("wait", wait_ms, 0, MAX_MS)


async def with_waited(
    exchanged: Exchanged, wait_ms: int | None, claim: Callable[[], Awaitable[list[Delivery]]]
) -> Exchanged:
    """Return an exchange that did not wait; if it brought no messages, with those of `claim`, which waits.

    If that claim fails, return the results alone: the verdicts are settled, and the caller must learn of that.
    """
    if exchanged.deliveries or wait_ms == 0:
        return exchanged
    try:
        return exchanged._replace(deliveries=await claim())
    except HoldfastError:
        if not exchanged.results:
            raise
        return exchanged
