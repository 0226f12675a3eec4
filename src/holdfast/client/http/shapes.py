"""Conversions between the model and the documents of HTTP, as a client needs them."""

from holdfast.model.answers import Enqueued
from holdfast.model.requests import Settle, Verdict
from holdfast.wire.http.bodies import EnqueuedOut, ReceiptIn, VerdictIn
from holdfast.wire.http.shapes import given_correlation_id


def enqueued_of(out: EnqueuedOut) -> Enqueued:
    """Return the result of an enqueue from its document."""
    return Enqueued(
        snowflake=int(out.snowflake),
        given_correlation_id=given_correlation_id(out.id, out.correlation_id),
        duplicate=out.duplicate,
    )


def receipt_in(verdict: Verdict) -> str | ReceiptIn:
    """Return the document of a receipt, with the options of its verdict if there are any."""
    receipt = str(verdict.receipt)
    if verdict.settle is Settle.NACK:
        return ReceiptIn(
            receipt=receipt,
            error=verdict.error,
            delay_ms=verdict.delay_ms,
            defer=verdict.defer,
            final=verdict.final,
            exhausted=verdict.exhausted,
        )
    if verdict.settle is Settle.EXTEND and verdict.lease_ms is not None:
        return ReceiptIn(receipt=receipt, lease_ms=verdict.lease_ms)
    return receipt


def verdict_in(verdict: Verdict) -> VerdictIn:
    """Return the document of a verdict that is sent with a claim."""
    return VerdictIn(
        receipt=str(verdict.receipt),
        verdict=verdict.settle,
        error=verdict.error,
        delay_ms=verdict.delay_ms,
        defer=verdict.defer,
        final=verdict.final,
        exhausted=verdict.exhausted,
    )
