"""Arguments and results of operations by name, for which a wire has no hand-written format.

Cap'n Proto writes them as JSON (`capnp/arguments.py`), the framed protocol as MessagePack (`framed/calls.py`). Both
directions are here: clients write arguments and read results, doors read arguments and write results.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict, fields, replace

from holdfast.model.answers import Info, JournalEvents, Page
from holdfast.model.events import JournalEvent
from holdfast.model.ids import parse_id, to_uuid
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef, parse_name
from holdfast.model.requests import EVERYTHING, Edit, Filter, make_filter, parse_state
from holdfast.wire.binding import Binding, FieldShape
from holdfast.wire.operation import Operation
from holdfast.wire.requests import JournalRequest, MoveRequest

R = TypeVar("R")
A = TypeVar("A")


class EditArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replacement for the payload of a message that is redriven."""

    id: str | int
    # JSON carries it as base64.
    payload: bytes
    content_type: str


class PageAnswer(msgspec.Struct, frozen=True):
    """A page of messages. `cursor` is the start of the next page, None on the last one."""

    messages: list[Info]
    cursor: str | None


class EventsAnswer(msgspec.Struct, frozen=True):
    """Journal events, and the position after the last one."""

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


# A draft is sent unchanged, without the field that only stores set.
_draft: Binding[Draft] = Binding(Draft, {}, apart=("pieces",))

# Model types that the arguments write differently.
_FIELDS: Mapping[Any, FieldShape] = {
    Filter: FieldShape(dict[str, Any] | None, _filter_in, lambda given, ref: make_filter(given)),
    Edit | None: FieldShape(EditArgument | None, _edit_in, lambda given, ref: _edit_of(given)),
    Receipt: FieldShape(str, str, lambda given, ref: Receipt.parse(given)),
    State: FieldShape(str, str, lambda given, ref: parse_state(given)),
    Draft | None: FieldShape(
        _draft.type | None,
        lambda draft: None if draft is None else _draft.document(draft),
        lambda given, ref: None if given is None else _draft.request(given, ref),
    ),
}


def _shapes_of(request: type[msgspec.Struct], more: Mapping[Any, FieldShape]) -> dict[Any, FieldShape]:
    """Return the shapes of a request's types, without the bounds of numbers: here the service checks their range."""
    shapes = {**_FIELDS, **more}
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
    """The document of a result that cannot be encoded as it is, and the conversions both ways."""

    type: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _page_of(answer: PageAnswer) -> Page[Info]:
    page: Page[Info] = Page(answer.messages)
    page.cursor = answer.cursor
    return page


def _events_of(answer: EventsAnswer) -> JournalEvents:
    events = JournalEvents(answer.events)
    events.next = answer.next
    return events


_WRAPPERS: Mapping[Any, _Wrapper] = {
    Page[Info]: _Wrapper(PageAnswer, lambda page: PageAnswer(page, page.cursor), _page_of),
    JournalEvents: _Wrapper(EventsAnswer, lambda events: EventsAnswer(events, events.next), _events_of),
}


# --- Operations ------------------------------------------------------------------------------------------------------


class ArgumentsBinding(Generic[R, A]):
    """The documents of one operation, independent of their encoding.

    `shapes` are those that only one encoding needs. Fields named in `apart` are not sent on that wire.
    """

    def __init__(
        self,
        operation: Operation[R, A],
        shapes: Mapping[Any, FieldShape],
        apart: tuple[str, ...] = (),
    ) -> None:
        request: Any = operation.request
        self._request = request
        # The target of a move is two fields beside the others, not a nested document.
        more: tuple[tuple[Any, ...], ...] = ()
        if request is MoveRequest:
            apart, more = (*apart, "to"), (("queue", str), ("tenant", str | None, None))
        binding: Any = Binding(request, _shapes_of(request, shapes), apart=apart, more=more)
        self._binding = binding
        self._wrapper = _WRAPPERS.get(operation.answer)
        self.has_arguments = bool(binding.fields)
        self.arguments_type: Any = binding.type
        self.answer_type: Any = operation.answer if self._wrapper is None else self._wrapper.type

    def arguments(self, request: R) -> Any:
        """Return the document of a request."""
        more = {}
        if isinstance(request, MoveRequest):
            more = {"queue": request.to.queue, "tenant": request.to.tenant}
        return self._binding.document(request, **more)

    def request(self, arguments: Any, ref: QueueRef) -> R:
        """Return the request of a document. Raise `InvalidArgument` for a wrong value.

        `ref` is the queue of the call; its tenant is the default for the target of a move.
        """
        apart = {}
        if self._request is MoveRequest:
            tenant = ref.tenant if arguments.tenant is None else parse_name("tenant", arguments.tenant)
            apart = {"to": QueueRef(tenant, parse_name("queue", arguments.queue))}
        request = self._binding.request(arguments, ref, **apart)
        if isinstance(request, JournalRequest) and request.tenant is not None:
            request = replace(request, tenant=parse_name("tenant", request.tenant))
        read: R = request
        return read

    def document(self, answer: A) -> Any:
        """Return the document of a result."""
        return answer if self._wrapper is None else self._wrapper.write(answer)

    def answer(self, document: Any) -> A:
        """Return the result of a document."""
        answer: A = document if self._wrapper is None else self._wrapper.read(document)
        return answer
