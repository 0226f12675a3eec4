"""Requests and answers as Cap'n Proto: nothing is decided here."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.client.capnp.calls import CapnpCalls, CapnpRequest
from holdfast.client.capnp.shapes import (
    deliveries_of,
    enqueued_of,
    results_of,
    stats_of,
    summary_of,
    write_ask,
    write_drafts,
    write_ref,
    write_verdicts,
)
from holdfast.client.capnp.uploads import CapnpUpload
from holdfast.client.http.failures import strange_answer
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.capnp.arguments import CAPNP_BINDINGS
from holdfast.wire.operation import Operation
from holdfast.wire.operations import DELETE, QUEUES, STATS


class CapnpCodec:
    riding = frozenset(Settle)
    mixes_verdicts = True
    longest_wait_ms = 0xFFFF_FFFE
    most_shared_bytes = 64 << 10

    def __init__(self, calls: CapnpCalls) -> None:
        self._calls = calls

    # --- Enqueue ---------------------------------------------------------------------------------------------------

    def enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool) -> CapnpRequest:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_drafts(request, drafts)

        # Only messages that all have keys may be sent again.
        return CapnpRequest(
            "add", fill, is_repeatable=all(draft.key is not None for draft in drafts), is_shared=is_shared
        )

    def enqueued(self, answer: Any) -> list[Enqueued]:
        return enqueued_of(answer)

    def upload(self, ref: QueueRef, draft: Draft, size: int | None) -> CapnpUpload:
        """Refused as soon as it is too large, whatever its size was said to be."""
        return CapnpUpload(self._calls, ref, draft)

    # --- Claims ----------------------------------------------------------------------------------------------------

    def claim(
        self,
        ref: QueueRef,
        ask: ClaimRequest,
        wait_ms: int | None,
        verdicts: list[Verdict],
        heard_late: Callable[[Any], Awaitable[None]],
    ) -> CapnpRequest:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_ask(request, ask, wait_ms)
            if verdicts:
                write_verdicts(request, verdicts)

        return CapnpRequest("poll", fill, wait_ms=wait_ms, heard_late=heard_late)

    def claimed(self, answer: Any, verdicts: list[Verdict]) -> Exchanged:
        return Exchanged(results_of(answer) if verdicts else [], deliveries_of(answer))

    def deliveries(self, answer: Any) -> list[Delivery]:
        return deliveries_of(answer)

    def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> CapnpRequest:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            request.receipt = str(receipt)
            request.offset = offset
            request.limit = limit

        return CapnpRequest("readPart", fill)

    def part(self, answer: Any) -> PayloadPart:
        return PayloadPart(answer.data, answer.total, answer.correlationId)

    # --- Verdicts --------------------------------------------------------------------------------------------------

    def settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool) -> CapnpRequest:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_verdicts(request, verdicts)

        return CapnpRequest("settle", fill, is_last=is_last)

    def settled(self, answer: Any, verdicts: list[Verdict]) -> list[Result]:
        if (error := self._calls.error_in(answer)) is not None:
            raise error
        return results_of(answer)

    # --- Other operations: by name, but for the few that have a method of their own --------------------------------

    def operate(self, operation: Operation[Any, Any], ref: QueueRef, request: Any) -> CapnpRequest:
        if not operation.is_by_name:
            method, write, _ = _METHODS[operation.name]
            return CapnpRequest(method, lambda out: write(out, ref, request), is_long=operation.is_long)
        arguments = CAPNP_BINDINGS[operation.name].write(request)

        def fill(out: Any) -> None:
            write_ref(out, ref)
            out.operation = operation.name
            out.arguments = arguments

        return CapnpRequest("operate", fill, is_long=operation.is_long)

    def operated(self, operation: Operation[Any, Any], request: Any, answer: Any) -> Any:
        if not operation.is_by_name:
            _, _, read = _METHODS[operation.name]
            return read(answer)
        try:
            return CAPNP_BINDINGS[operation.name].read_answer(answer.answer)
        except msgspec.DecodeError:
            raise strange_answer(self._calls.url) from None


def _fill_queues(out: Any, ref: QueueRef, request: Any) -> None:
    out.tenant = ref.tenant


def _fill_stats(out: Any, ref: QueueRef, request: Any) -> None:
    write_ref(out, ref)


def _fill_delete(out: Any, ref: QueueRef, request: Any) -> None:
    write_ref(out, ref)
    out.forceAfterMs = request.force_after_ms


# By the name of the operation: its method in the schema, how that is filled in, and how its answer is read.
_METHODS: dict[str, tuple[str, Callable[[Any, QueueRef, Any], None], Callable[[Any], object]]] = {
    QUEUES.name: ("listQueues", _fill_queues, lambda answer: [summary_of(each) for each in answer.queues]),
    STATS.name: ("stats", _fill_stats, lambda answer: stats_of(answer.stats)),
    DELETE.name: ("deleteQueue", _fill_delete, lambda answer: None),
}
