"""The method `operate`: carry out an operation by name, with JSON arguments and a JSON result.

It is for operations that have no method of their own in the schema.
"""

from typing import Any

import msgspec

from holdfast.doors.capnp.answers import read_with_room
from holdfast.doors.capnp.calls import CapnpCall
from holdfast.model.errors import InvalidArgument
from holdfast.model.names import QueueRef
from holdfast.model.scopes import Scope
from holdfast.telemetry.log import printable
from holdfast.wire.capnp.arguments import CAPNP_BINDINGS, CapnpBinding
from holdfast.wire.operation import Target
from holdfast.wire.operations import OPERATIONS


async def operate(call: CapnpCall) -> None:
    """Carry out the operation that the call names."""
    name = call.params.operation
    binding = CAPNP_BINDINGS.get(name)
    if binding is None:
        raise InvalidArgument(
            f"{printable(name[:80])!r} is not an operation; give one of {', '.join(sorted(CAPNP_BINDINGS))}",
            field="operation",
        )
    call.operation, operation = name, OPERATIONS[name]
    ref = call.ref()
    if operation.target is not Target.QUEUE:
        call.queue = None
    request = _read(binding, call.params.arguments, ref)

    async def carry_out() -> bytes:
        return binding.write_answer(await call.session.call(operation, ref, request))

    if operation.scope is Scope.READ and operation.may_repeat(request):
        call.results.answer = await read_with_room(call, carry_out, len)
    else:
        # An operation that changes something must be carried out once, and its response is small.
        call.results.answer = await carry_out()


def _read(binding: CapnpBinding[Any, Any], data: bytes, ref: QueueRef) -> Any:
    try:
        data.decode()
        return binding.read(data, ref)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = printable(path.rstrip("`").lstrip(".")[:200])
        raise InvalidArgument(f"{field or 'arguments'}: {printable(text[:200])}", field=field or "arguments") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument("arguments are not a JSON document", field="arguments") from None
