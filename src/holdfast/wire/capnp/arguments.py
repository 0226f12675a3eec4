"""The operations that Cap'n Proto carries by name: arguments and answers as JSON, in the method `operate`."""

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
    def __init__(self, operation: Operation[R, A]) -> None:
        request: Any = operation.request
        # This wire knows no end of a journal's range.
        apart = ("until",) if request is JournalRequest else ()
        self._binding = ArgumentsBinding(operation, {}, apart)
        self._arguments_decoder = msgspec.json.Decoder(self._binding.arguments_type)
        self._answer_decoder = msgspec.json.Decoder(self._binding.answer_type)

    # --- The client's side -------------------------------------------------------------------------------------------

    def write(self, request: R) -> bytes:
        if not self._binding.has_arguments:
            return b""
        return msgspec.json.encode(self._binding.arguments(request))

    def read_answer(self, data: bytes) -> A:
        """Raise `msgspec.DecodeError` for anything but the answer's document."""
        return self._binding.answer(self._answer_decoder.decode(data))

    # --- The door's side ---------------------------------------------------------------------------------------------

    def read(self, data: bytes, ref: QueueRef) -> R:
        """Raise `msgspec.DecodeError` for anything but the arguments' document, `InvalidArgument` for a wrong value.

        `ref` is the queue of the call.
        """
        return self._binding.request(self._arguments_decoder.decode(data or b"{}"), ref)

    def write_answer(self, answer: A) -> bytes:
        return msgspec.json.encode(self._binding.document(answer))


# By the name of the operation.
CAPNP_BINDINGS: Mapping[str, CapnpBinding[Any, Any]] = {
    name: CapnpBinding(operation) for name, operation in OPERATIONS.items() if operation.is_by_name
}
