"""What a protocol has to bring beside its connections: its requests, written, and its answers, read."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from holdfast.client.transport import TransportUpload
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.wire.operation import Operation

Req_co = TypeVar("Req_co", covariant=True)
Ans = TypeVar("Ans")


class Codec(Protocol[Req_co, Ans]):
    """No I/O, no retries. An answer is one that its calls let pass: a refusal in it is raised as its error."""

    # The verdicts that a claim can carry.
    riding: frozenset[Settle]
    # One request can carry verdicts of several kinds.
    mixes_verdicts: bool
    # The longest wait of one request that can be written.
    longest_wait_ms: int
    # The largest payload that shares a request with others: nobody is to wait for a larger one.
    most_shared_bytes: int

    def enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool) -> Req_co:
        """`is_shared`: these are several callers' messages."""

    def enqueued(self, answer: Ans) -> list[Enqueued]: ...

    def claim(
        self,
        ref: QueueRef,
        ask: ClaimRequest,
        wait_ms: int | None,
        verdicts: list[Verdict],
        heard_late: Callable[[Ans], Awaitable[None]],
    ) -> Req_co:
        """`heard_late` is given an answer that came after its caller had left."""

    def claimed(self, answer: Ans, verdicts: list[Verdict]) -> Exchanged: ...

    def deliveries(self, answer: Ans) -> list[Delivery]:
        """Return the deliveries alone of an answer to a claim."""

    def settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool) -> Req_co:
        """Of one kind, unless the protocol mixes them. `is_last`: sent by a client that is closing, too."""

    def settled(self, answer: Ans, verdicts: list[Verdict]) -> list[Result]: ...

    def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Req_co: ...

    def part(self, answer: Ans) -> PayloadPart: ...

    def operate(self, operation: Operation[Any, Any], ref: QueueRef, request: Any) -> Req_co: ...

    def operated(self, operation: Operation[Any, Any], request: Any, answer: Ans) -> Any: ...

    def upload(self, ref: QueueRef, draft: Draft, size: int | None) -> TransportUpload: ...
