"""Encode and decode the arguments and results of operations that Cap'n Proto carries by name, in `operate`, as JSON."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.model.names import QueueRef
from holdfast.wire.arguments import ArgumentsBinding
from holdfast.wire.operation import Operation
from holdfast.wire.operations import OPERATIONS
from holdfast.wire.requests import JournalRequest

R = TypeVar("R")
A = TypeVar("A")


class CapnpBinding(Generic[R, A]):
    """The JSON arguments and result of one operation."""

    def __init__(self, operation: Operation[R, A]) -> None:
        request: Any = operation.request
        # This wire does not support the end of a journal range.
        apart = ("until",) if request is JournalRequest else ()
        self._binding = ArgumentsBinding(operation, {}, apart)
        self._arguments_decoder = msgspec.json.Decoder(self._binding.arguments_type)
        self._answer_decoder = msgspec.json.Decoder(self._binding.answer_type)

    # --- The client's side -------------------------------------------------------------------------------------------

    def write(self, request: R) -> bytes:
        """Encode a request."""
        if not self._binding.has_arguments:
            return b""
        return msgspec.json.encode(self._binding.arguments(request))

    def read_answer(self, data: bytes) -> A:
        """Decode a result. Raise `msgspec.DecodeError` for any other document."""
        return self._binding.answer(self._answer_decoder.decode(data))

    # --- The door's side ---------------------------------------------------------------------------------------------

    def read(self, data: bytes, ref: QueueRef) -> R:
        """Decode a request to the queue `ref`.

        Raise `msgspec.DecodeError` for another document and `InvalidArgument` for a wrong value.
        """
        return self._binding.request(self._arguments_decoder.decode(data or b"{}"), ref)

    def write_answer(self, answer: A) -> bytes:
        """Encode a result."""
        return msgspec.json.encode(self._binding.document(answer))


# Keys are operation names.
CAPNP_BINDINGS: Mapping[str, CapnpBinding[Any, Any]] = {
    name: CapnpBinding(operation) for name, operation in OPERATIONS.items() if operation.is_by_name
}
