"""The operations of `wire/operations.py` on a server."""

from typing import Any, Generic, TypeVar, cast

from holdfast.client.remote.calls import AnyRequest, Calls
from holdfast.client.remote.codec import Codec
from holdfast.client.remote.requests import encode_request, prepare_request
from holdfast.model.names import QueueRef
from holdfast.wire.operation import Operation

Req = TypeVar("Req", bound=AnyRequest)
Res = TypeVar("Res")
R = TypeVar("R")
A = TypeVar("A")


class RemoteOperations(Generic[Req, Res]):
    """The operations of the table over one protocol, whose codec writes the requests."""

    def __init__(self, calls: Calls[Req, Res], codec: Codec[Req, Res]) -> None:
        self._calls = calls
        self._codec = codec

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        ready = prepare_request(operation, request)
        sent = encode_request(operation, lambda: self._codec.operate(operation, ref, ready))
        # If a retried operation is refused because it has been done already, the earlier try did it. It is therefore
        # safe to repeat.
        sent.is_repeatable = operation.may_repeat(ready) or bool(operation.done_if)
        reply = await self._calls.send_unchecked(sent)
        error: Any = self._calls.error_in(reply.response) if reply.is_unsure and operation.done_if else None
        if error is not None and error.code in operation.done_if:
            return cast(A, None)
        return cast(A, self._codec.operated(operation, ready, self._calls.check(reply)))
