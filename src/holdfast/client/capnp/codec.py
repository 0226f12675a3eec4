"""The codec of Cap'n Proto."""

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
from holdfast.client.http.failures import unexpected_response
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.capnp.arguments import CAPNP_BINDINGS
from holdfast.wire.operation import Operation
from holdfast.wire.operations import DELETE, QUEUES, STATS


class CapnpCodec:
    """The codec of a client over Cap'n Proto."""

    verdicts_on_claim = frozenset(Settle)
    mixes_verdicts = True
    max_wait_ms = 0xFFFF_FFFE
    max_shared_bytes = 64 << 10

    def __init__(self, calls: CapnpCalls) -> None:
        self._calls = calls

    # --- Enqueue ---------------------------------------------------------------------------------------------------

    def enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool) -> CapnpRequest:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_drafts(request, drafts)

        # A request may be sent again only if all its messages have keys.
        return CapnpRequest(
            "add", fill, is_repeatable=all(draft.key is not None for draft in drafts), is_shared=is_shared
        )

    def enqueued(self, response: Any) -> list[Enqueued]:
        return enqueued_of(response)

    def upload(self, ref: QueueRef, draft: Draft, size: int | None) -> CapnpUpload:
        """Return an upload. The server refuses it as soon as it is too large, so its size is not needed."""
        return CapnpUpload(self._calls, ref, draft)

    # --- Claims ----------------------------------------------------------------------------------------------------

    def claim(
        self,
        ref: QueueRef,
        ask: ClaimRequest,
        wait_ms: int | None,
        verdicts: list[Verdict],
        on_late: Callable[[Any], Awaitable[None]],
    ) -> CapnpRequest:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_ask(request, ask, wait_ms)
            if verdicts:
                write_verdicts(request, verdicts)

        return CapnpRequest("poll", fill, wait_ms=wait_ms, on_late=on_late)

    def waits_with_verdicts(self, ask: ClaimRequest) -> bool:
        return False  # a `poll` with verdicts does not wait

    def claimed(self, response: Any, verdicts: list[Verdict]) -> Exchanged:
        return Exchanged(results_of(response) if verdicts else [], deliveries_of(response))

    def deliveries(self, response: Any) -> list[Delivery]:
        return deliveries_of(response)

    def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> CapnpRequest:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            request.receipt = str(receipt)
            request.offset = offset
            request.limit = limit

        return CapnpRequest("readPart", fill)

    def part(self, response: Any) -> PayloadPart:
        return PayloadPart(response.data, response.total, response.correlationId)

    # --- Verdicts --------------------------------------------------------------------------------------------------

    def settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool) -> CapnpRequest:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_verdicts(request, verdicts)

        return CapnpRequest("settle", fill, is_last=is_last)

    def settled(self, response: Any, verdicts: list[Verdict]) -> list[Result]:
        if (error := self._calls.error_in(response)) is not None:
            raise error
        return results_of(response)

    # --- Other operations: by name, except those with their own method -----------------------------------------------

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

    def operated(self, operation: Operation[Any, Any], request: Any, response: Any) -> Any:
        if not operation.is_by_name:
            _, _, read = _METHODS[operation.name]
            return read(response)
        try:
            return CAPNP_BINDINGS[operation.name].read_answer(response.answer)
        except msgspec.DecodeError:
            raise unexpected_response(self._calls.url) from None


def _fill_queues(out: Any, ref: QueueRef, request: Any) -> None:
    out.tenant = ref.tenant


def _fill_stats(out: Any, ref: QueueRef, request: Any) -> None:
    write_ref(out, ref)


def _fill_delete(out: Any, ref: QueueRef, request: Any) -> None:
    write_ref(out, ref)
    out.forceAfterMs = request.force_after_ms


# By operation: its method in the schema, how to fill in the parameters, and how to read the response.
_METHODS: dict[str, tuple[str, Callable[[Any, QueueRef, Any], None], Callable[[Any], object]]] = {
    QUEUES.name: ("listQueues", _fill_queues, lambda response: [summary_of(each) for each in response.queues]),
    STATS.name: ("stats", _fill_stats, lambda response: stats_of(response.stats)),
    DELETE.name: ("deleteQueue", _fill_delete, lambda response: None),
}
