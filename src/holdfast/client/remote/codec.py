"""The interface of a protocol's codec, which writes requests and reads responses."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from holdfast.client.transport import TransportUpload
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.operation import Operation

Req_co = TypeVar("Req_co", covariant=True)
Res = TypeVar("Res")


class Codec(Protocol[Req_co, Res]):
    """Encodes and decodes without I/O or retries. Its responses are final; it raises the error in a response."""

    # The kinds of verdicts that a claim can carry.
    verdicts_on_claim: frozenset[Settle]
    # A request can carry verdicts of several kinds.
    mixes_verdicts: bool
    # The longest wait that a request can express.
    max_wait_ms: int
    # The largest payload, in bytes, that shares a request with others. No caller should wait for a larger one.
    max_shared_bytes: int

    def enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool) -> Req_co:
        """Return a request that enqueues. `is_shared`: the messages belong to several callers."""

    def enqueued(self, response: Res) -> list[Enqueued]:
        """Return the results of an enqueue, one for each message."""

    def claim(
        self,
        ref: QueueRef,
        ask: ClaimRequest,
        wait_ms: int | None,
        verdicts: list[Verdict],
        on_late: Callable[[Res], Awaitable[None]],
    ) -> Req_co:
        """Return a request that claims. `on_late` gets a response that came after the caller was cancelled."""

    def waits_with_verdicts(self, ask: ClaimRequest) -> bool:
        """Return whether a request for this claim can wait for messages and carry verdicts too."""

    def claimed(self, response: Res, verdicts: list[Verdict]) -> Exchanged: ...

    def deliveries(self, response: Res) -> list[Delivery]:
        """Return only the deliveries in a response to a claim."""

    def settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool) -> Req_co:
        """Return a request that settles. The verdicts are of one kind, unless the protocol mixes them.

        `is_last`: also sent while the client is closing.
        """

    def settled(self, response: Res, verdicts: list[Verdict]) -> list[Result]:
        """Return the result of each verdict. Raise the error of a call that was refused as a whole."""

    def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Req_co: ...

    def part(self, response: Res) -> PayloadPart:
        """Return the part of a payload in a response."""

    def operate(self, operation: Operation[Any, Any], ref: QueueRef, request: Any) -> Req_co:
        """Return a request for an operation of the table that has no method of its own here."""

    def operated(self, operation: Operation[Any, Any], request: Any, response: Res) -> Any:
        """Return the result of such an operation."""

    def upload(self, ref: QueueRef, draft: Draft, size: int | None) -> TransportUpload: ...
