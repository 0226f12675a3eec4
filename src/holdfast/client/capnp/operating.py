"""Operations by name, as a client asks for them."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.client.capnp.calls import Calls, Request
from holdfast.client.capnp.shapes import write_ref
from holdfast.client.http.failures import strange_answer
from holdfast.client.payloads import encode_json
from holdfast.model.ids import to_uuid
from holdfast.model.names import QueueRef
from holdfast.model.requests import EVERYTHING, Filter
from holdfast.wire.operations import Arguments

T = TypeVar("T")


class Operating:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    async def operate(
        self,
        operation: str,
        ref: QueueRef,
        arguments: Arguments | None,
        kind: type[T],
        *,
        is_repeatable: bool = True,
        is_long: bool = False,
    ) -> T:
        return await self.operate_with(
            operation,
            ref,
            b"" if arguments is None else msgspec.json.encode(arguments),
            kind,
            is_repeatable=is_repeatable,
            is_long=is_long,
        )

    async def operate_with(
        self,
        operation: str,
        ref: QueueRef,
        arguments: bytes,
        kind: type[T],
        *,
        is_repeatable: bool = True,
        is_long: bool = False,
    ) -> T:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            request.operation = operation
            request.arguments = arguments

        answer = await self.calls.ask(Request("operate", fill, is_repeatable=is_repeatable, is_long=is_long))
        try:
            return msgspec.json.decode(answer.answer, type=kind)
        except msgspec.DecodeError:
            raise strange_answer(self.calls.url) from None


def changes_in(changes: Mapping[str, Any]) -> bytes:
    """By the rules of payloads: a NaN would pass for null, which means unlimited."""
    plain = {
        name: msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
        for name, value in changes.items()
    }
    return encode_json({"changes": plain})


def filter_in(which: Filter) -> dict[str, Any] | None:
    if which == EVERYTHING:
        return None
    fields = {name: value for name, value in msgspec.structs.asdict(which).items() if value not in (None, {})}
    if which.ids is not None:
        fields["ids"] = [to_uuid(each) for each in which.ids]
    return fields
