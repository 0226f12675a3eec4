"""Convert between HTTP documents and the model, for the hot routes."""

from collections.abc import Iterable

from holdfast.model.answers import Enqueued, Result
from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.message import Receipt
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.http.bodies import (
    DequeueRequest,
    EnqueuedOut,
    ReceiptIn,
    VerdictIn,
)

# The verdicts that a dequeue may carry.
_DEQUEUE_VERDICTS = {"ack": Settle.ACK, "nack": Settle.NACK, "release": Settle.RELEASE}


def enqueued_out(enqueued: Enqueued) -> EnqueuedOut:
    """Return the document of an enqueued message."""
    id = enqueued.id
    return EnqueuedOut(
        id=id,
        snowflake=str(enqueued.snowflake),
        correlation_id=enqueued.given_correlation_id or id,
        duplicate=enqueued.duplicate,
    )


def claim_request_of(
    request: DequeueRequest, *, with_state: bool, ledger: tuple[str, int] | None = None
) -> ClaimRequest:
    """Return the claim that a dequeue asks for. `ledger` is the consumer and the number of a claim in the ledger."""
    return ClaimRequest(
        limit=request.limit,
        lease_ms=request.lease_ms,
        owner=request.owner,
        with_state=with_state,
        ledger=ledger,
        streams=request.payloads_apart,
    )


def verdicts_of(given: Iterable[VerdictIn]) -> list[Verdict]:
    """Return the verdicts that a dequeue carries. Raise `InvalidArgument` for an unknown verdict."""
    verdicts = []
    for each in given:
        settle = _DEQUEUE_VERDICTS.get(each.verdict)
        if settle is None:
            raise InvalidArgument(
                f"{each.verdict[:80]!r} is not a verdict; give {', '.join(_DEQUEUE_VERDICTS)}", field="verdicts.verdict"
            )
        verdicts.append(
            Verdict(
                settle=settle,
                receipt=Receipt.parse(each.receipt),
                error=each.error,
                delay_ms=each.delay_ms,
                defer=each.defer,
                final=each.final,
                exhausted=each.exhausted,
            )
        )
    return verdicts


def receipts_of(given: Iterable[str | ReceiptIn]) -> list[ReceiptIn]:
    """Return every receipt as an object with options."""
    return [ReceiptIn(receipt=each) if isinstance(each, str) else each for each in given]


def results_error(results: Iterable[Result]) -> HoldfastError | None:
    """Return the error to send beside the results of a call, or None if every verdict was carried out.

    Verdicts that could not be written take precedence over stale ones, because sending them again helps.
    """
    failed = [each for each in results if not each.ok]
    if not failed:
        return None
    failed.sort(key=lambda each: not each.is_retryable)
    error = failed[0].failure()
    same = [each.id for each in failed if each.error == error.code]
    if failed[0].is_stale:
        message = f"{len(same)} receipts are stale; `results` has the outcome of each"
    else:
        message = (
            f"{len(same)} verdicts were not carried out ({error.code}); their leases are still held, so send them "
            "again; `results` has the outcome of each"
        )
    return type(error)(message, ids=same)
