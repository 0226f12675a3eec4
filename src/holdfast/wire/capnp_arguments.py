"""The arguments and answers of the operations that Cap'n Proto carries by name: JSON, in the method `operate`.

Both directions are here: clients write arguments and read answers, the door reads arguments and writes answers.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict, fields, replace

from holdfast.model.answers import Events, Info, Page
from holdfast.model.events import JournalEvent
from holdfast.model.ids import parse_id, to_uuid
from holdfast.model.message import Receipt, State
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.requests import EVERYTHING, Edit, Filter, make_filter, parse_state
from holdfast.wire.binding import Binding, FieldShape
from holdfast.wire.operation import Operation
from holdfast.wire.operations import OPERATIONS
from holdfast.wire.requests import JournalRequest, MoveRequest

R = TypeVar("R")
A = TypeVar("A")


class EditArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str | int
    # Base64 in the document.
    payload: bytes
    content_type: str


class PageAnswer(msgspec.Struct, frozen=True):
    messages: list[Info]
    cursor: str | None


class EventsAnswer(msgspec.Struct, frozen=True):
    events: list[JournalEvent]
    next: str


# --- Fields ----------------------------------------------------------------------------------------------------------


def _filter_in(which: Filter) -> dict[str, Any] | None:
    if which == EVERYTHING:
        return None
    given = {name: value for name, value in asdict(which).items() if value not in (None, {})}
    if which.ids is not None:
        given["ids"] = [to_uuid(each) for each in which.ids]
    return given


def _edit_in(edit: Edit | None) -> EditArgument | None:
    if edit is None:
        return None
    return EditArgument(id=edit.id, payload=edit.payload, content_type=edit.content_type)


def _edit_of(given: EditArgument | None) -> Edit | None:
    if given is None:
        return None
    return Edit(id=parse_id(given.id), payload=given.payload, content_type=given.content_type)


# The model's types that have a form of their own in the arguments.
CAPNP_FIELDS: Mapping[Any, FieldShape] = {
    Filter: FieldShape(dict[str, Any] | None, _filter_in, lambda given, ref: make_filter(given)),
    Edit | None: FieldShape(EditArgument | None, _edit_in, lambda given, ref: _edit_of(given)),
    Receipt: FieldShape(str, str, lambda given, ref: Receipt.parse(given)),
    State: FieldShape(str, str, lambda given, ref: parse_state(given)),
}


def _shapes_of(request: type[msgspec.Struct]) -> dict[Any, FieldShape]:
    """Return `CAPNP_FIELDS`, and bare numbers for those with bounds: here the service refuses one out of range."""
    shapes = dict(CAPNP_FIELDS)
    for field in fields(request):
        bare = _without_bounds(field.type)
        if bare != field.type:
            shapes[field.type] = FieldShape(bare, lambda value: value, lambda value, ref: value)
    return shapes


def _without_bounds(kind: Any) -> Any:
    if hasattr(kind, "__metadata__"):
        return kind.__origin__
    one, *others = getattr(kind, "__args__", None) or (kind,)
    return _without_bounds(one) | None if others == [type(None)] else kind


# --- Answers ---------------------------------------------------------------------------------------------------------


class _Wrapper(NamedTuple):
    """The document of an answer that is not one by itself."""

    type: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _page_of(answer: PageAnswer) -> Page[Info]:
    page: Page[Info] = Page(answer.messages)
    page.cursor = answer.cursor
    return page


def _events_of(answer: EventsAnswer) -> Events:
    events = Events(answer.events)
    events.next = answer.next
    return events


_WRAPPERS: Mapping[Any, _Wrapper] = {
    Page[Info]: _Wrapper(PageAnswer, lambda page: PageAnswer(page, page.cursor), _page_of),
    Events: _Wrapper(EventsAnswer, lambda events: EventsAnswer(events, events.next), _events_of),
}


# --- Operations ------------------------------------------------------------------------------------------------------


class CapnpBinding(Generic[R, A]):
    def __init__(self, operation: Operation[R, A]) -> None:
        request: Any = operation.request
        self._request = request
        # The target of a move stands flat beside its other fields, and this wire knows no end of a journal's range.
        apart: tuple[str, ...] = ()
        more: tuple[tuple[Any, ...], ...] = ()
        if request is MoveRequest:
            apart, more = ("to",), (("queue", str), ("tenant", str | None, None))
        elif request is JournalRequest:
            apart = ("until",)
        self._arguments = Binding(request, _shapes_of(request), apart=apart, more=more)
        self._has_arguments = bool(self._arguments.fields)
        self._wrapper = _WRAPPERS.get(operation.answer)
        kind: Any = operation.answer if self._wrapper is None else self._wrapper.type
        self._arguments_decoder = msgspec.json.Decoder(self._arguments.type)
        self._answer_decoder = msgspec.json.Decoder(kind)

    # --- The client's side -------------------------------------------------------------------------------------------

    def write(self, request: R) -> bytes:
        given: Any = request
        if not self._has_arguments:
            return b""
        more = {}
        if isinstance(request, MoveRequest):
            more = {"queue": request.to.queue, "tenant": request.to.tenant}
        return msgspec.json.encode(self._arguments.document(given, **more))

    def read_answer(self, data: bytes) -> A:
        """Raise `msgspec.DecodeError` for anything but the answer's document."""
        answer = self._answer_decoder.decode(data)
        read: A = answer if self._wrapper is None else self._wrapper.read(answer)
        return read

    # --- The door's side ---------------------------------------------------------------------------------------------

    def read(self, data: bytes, ref: QueueRef) -> R:
        """Raise `msgspec.DecodeError` for anything but the arguments' document, `InvalidArgument` for a wrong value.

        `ref` is the queue of the call.
        """
        document: Any = self._arguments_decoder.decode(data or b"{}")
        apart = {}
        if self._request is MoveRequest:
            tenant = ref.tenant if document.tenant is None else parse_name("tenant", document.tenant)
            apart = {"to": QueueRef(tenant, parse_name("queue", document.queue))}
        request = self._arguments.request(document, ref, **apart)
        if isinstance(request, JournalRequest) and request.tenant is not None:
            request = replace(request, tenant=parse_name("tenant", request.tenant))
        read: R = request
        return read

    def write_answer(self, answer: A) -> bytes:
        return msgspec.json.encode(answer if self._wrapper is None else self._wrapper.write(answer))


# By the name of the operation.
CAPNP_BINDINGS: Mapping[str, CapnpBinding[Any, Any]] = {
    name: CapnpBinding(operation) for name, operation in OPERATIONS.items() if operation.is_by_name
}
