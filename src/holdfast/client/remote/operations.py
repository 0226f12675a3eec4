"""The operations of the table over a wire, each by its row."""

from typing import Any, Generic, TypeVar, cast

from holdfast.client.remote.calls import AnyRequest, Calls
from holdfast.client.remote.codec import Codec
from holdfast.client.remote.requests import prepared, written
from holdfast.model.names import QueueRef
from holdfast.wire.operation import Operation

Req = TypeVar("Req", bound=AnyRequest)
Ans = TypeVar("Ans")
R = TypeVar("R")
A = TypeVar("A")


class RemoteOperations(Generic[Req, Ans]):
    def __init__(self, calls: Calls[Req, Ans], codec: Codec[Req, Ans]) -> None:
        self._calls = calls
        self._codec = codec

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        ready = prepared(operation, request)
        sent = written(operation, lambda: self._codec.operate(operation, ref, ready))
        # A refusal tells whether an earlier try that went unanswered did it, so that this may be tried again.
        sent.is_repeatable = operation.may_repeat(ready) or bool(operation.done_if)
        told = await self._calls.tell(sent)
        error: Any = self._calls.error_in(told.answer) if told.is_unsure and operation.done_if else None
        if error is not None and error.code in operation.done_if:
            return cast(A, None)
        return cast(A, self._codec.operated(operation, ready, self._calls.checked(told)))
