"""The codec of the framed protocol."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.client.framed.calls import FramedCalls, FramedRequest
from holdfast.client.framed.open_call import ResponseFrame
from holdfast.client.framed.uploads import FramedUpload
from holdfast.client.http.failures import unexpected_response
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.framed.answers import read_claimed, read_enqueued, read_part, read_results
from holdfast.wire.framed.calls import (
    NAMED,
    write_claim,
    write_enqueue,
    write_exchange,
    write_named,
    write_read_part,
    write_settle,
)
from holdfast.wire.operation import Operation

T = TypeVar("T")


class FramedCodec:
    """The codec of a client over the framed protocol."""

    verdicts_on_claim = frozenset(Settle)
    mixes_verdicts = True
    max_wait_ms = MAX_MS
    max_shared_bytes = 64 << 10

    def __init__(self, calls: FramedCalls) -> None:
        self._calls = calls

    # --- Enqueue ---------------------------------------------------------------------------------------------------

    def enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool) -> FramedRequest:
        # A request may be sent again only if all its messages have keys.
        is_repeatable = all(draft.key is not None for draft in drafts)
        return FramedRequest(write_enqueue(ref, drafts), is_repeatable=is_repeatable, is_shared=is_shared)

    def enqueued(self, response: ResponseFrame) -> list[Enqueued]:
        return self._read(read_enqueued, response)

    def upload(self, ref: QueueRef, draft: Draft, size: int | None) -> FramedUpload:
        """Return an upload. The server refuses it as soon as it is too large, so its size is not needed."""
        return FramedUpload(self._calls, ref, draft)

    # --- Claims ----------------------------------------------------------------------------------------------------

    def claim(
        self,
        ref: QueueRef,
        ask: ClaimRequest,
        wait_ms: int | None,
        verdicts: list[Verdict],
        on_late: Callable[[ResponseFrame], Awaitable[None]],
    ) -> FramedRequest:
        body = write_exchange(ref, ask, verdicts, wait_ms) if verdicts else write_claim(ref, ask, wait_ms)
        return FramedRequest(body, wait_ms=wait_ms, on_late=on_late)

    def waits_with_verdicts(self, ask: ClaimRequest) -> bool:
        return True

    def claimed(self, response: ResponseFrame, verdicts: list[Verdict]) -> Exchanged:
        exchanged = self._read(read_claimed, response)
        if len(exchanged.results) != len(verdicts):
            raise unexpected_response(self._calls.url)
        return exchanged

    def deliveries(self, response: ResponseFrame) -> list[Delivery]:
        return self._read(read_claimed, response).deliveries

    def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> FramedRequest:
        return FramedRequest(write_read_part(ref, receipt, offset, limit))

    def part(self, response: ResponseFrame) -> PayloadPart:
        return self._read(read_part, response)

    # --- Verdicts --------------------------------------------------------------------------------------------------

    def settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool) -> FramedRequest:
        return FramedRequest(write_settle(ref, verdicts), is_last=is_last)

    def settled(self, response: ResponseFrame, verdicts: list[Verdict]) -> list[Result]:
        if (error := self._calls.error_in(response)) is not None:
            raise error
        results = self._read(read_results, response)
        if len(results) != len(verdicts):
            raise unexpected_response(self._calls.url)
        return results

    # --- Other operations: by name ---------------------------------------------------------------------------------

    def operate(self, operation: Operation[Any, Any], ref: QueueRef, request: Any) -> FramedRequest:
        return FramedRequest(write_named(operation, ref, request), is_long=operation.is_long)

    def operated(self, operation: Operation[Any, Any], request: Any, response: ResponseFrame) -> Any:
        return self._read(NAMED[operation.name].read_answer, response)

    def _read(self, read: Callable[[bytes], T], response: ResponseFrame) -> T:
        try:
            return read(response[1])
        except ValueError:  # msgspec's errors, and bytes that are not UTF-8
            raise unexpected_response(self._calls.url) from None
