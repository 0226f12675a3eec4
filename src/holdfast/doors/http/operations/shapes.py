"""Between the wire's documents and the model: nothing is decided here."""

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

# The verdicts that may ride on a dequeue.
_RIDING = {"ack": Settle.ACK, "nack": Settle.NACK, "release": Settle.RELEASE}


def enqueued_out(enqueued: Enqueued) -> EnqueuedOut:
    id = enqueued.id
    return EnqueuedOut(
        id=id,
        snowflake=str(enqueued.snowflake),
        correlation_id=enqueued.given_correlation_id or id,
        duplicate=enqueued.duplicate,
    )


def ask_of(request: DequeueRequest, *, with_state: bool, ledger: tuple[str, int] | None = None) -> ClaimRequest:
    return ClaimRequest(
        limit=request.limit,
        lease_ms=request.lease_ms,
        owner=request.owner,
        with_state=with_state,
        ledger=ledger,
        streams=request.payloads_apart,
    )


def riding_verdicts(given: Iterable[VerdictIn]) -> list[Verdict]:
    verdicts = []
    for each in given:
        settle = _RIDING.get(each.verdict)
        if settle is None:
            raise InvalidArgument(
                f"{each.verdict[:80]!r} is not a verdict: give {', '.join(_RIDING)}", field="verdicts.verdict"
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
    return [ReceiptIn(receipt=each) if isinstance(each, str) else each for each in given]


def results_error(results: Iterable[Result]) -> HoldfastError | None:
    """Return the error that stands beside the results of a call; None if every verdict was carried out.

    Verdicts that could not be written go before stale ones: sending them again helps.
    """
    failed = [each for each in results if not each.ok]
    if not failed:
        return None
    failed.sort(key=lambda each: not each.is_retryable)
    error = failed[0].failure()
    same = [each.id for each in failed if each.error == error.code]
    what = (
        "of the receipts no longer hold their message"
        if failed[0].is_stale
        else f"of the verdicts were not carried out ({error.code}); their leases stand, so send them again"
    )
    return type(error)(f"{len(same)} {what}; the results say what became of each", ids=same)
