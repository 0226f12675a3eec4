"""The operations of the table over HTTP, each by its route."""

from typing import Any, TypeVar, cast

import msgspec

from holdfast.client.http.calls import Calls, Request
from holdfast.client.http.connection import Answer
from holdfast.client.http.failures import answer_error, strange_answer
from holdfast.client.remote import prepared, written
from holdfast.model.answers import Events
from holdfast.model.names import QueueRef
from holdfast.wire.http import JournalEventOut
from holdfast.wire.http_routes import RouteBinding, bound
from holdfast.wire.http_shapes import event_of
from holdfast.wire.operation import Operation

R = TypeVar("R")
A = TypeVar("A")

_events = msgspec.json.Decoder(JournalEventOut)


class HttpOperations:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        request = prepared(operation, request)
        binding = _binding_of(operation, request)
        path, body = written(operation, lambda: binding.write(ref, request))
        sent = Request(
            binding.route.method,
            path,
            [] if body is None else [body],
            # A refusal tells whether an earlier try that went unanswered did it, so that this may be tried again.
            is_repeatable=operation.may_repeat(request) or bool(operation.done_if),
            is_long=operation.is_long,
        )
        told = await self._calls.tell(sent)
        if told.answer.status >= 300:
            error = answer_error(self._calls.url, told.answer)
            if not (told.is_unsure and error.code in operation.done_if):
                raise error
            return cast(A, None)
        answer = binding.route.answer
        try:
            return cast(A, _events_of(told.answer) if answer is None else answer.read(told.answer.body))
        except msgspec.DecodeError:
            raise strange_answer(self._calls.url) from None


def _binding_of(operation: Operation[R, Any], request: R) -> RouteBinding[Any]:
    """Return the route that says what the request says: an operation may have one for each value of a field."""
    for number, route in enumerate(operation.routes):
        if all(getattr(request, name) == value for name, value in route.fixed.items()):
            return bound(operation.name, number)
    raise AssertionError(f"{operation.name} has no route for {request!r}")


def _events_of(answer: Answer) -> Events:
    """The journal is the one answer that is not a single document."""
    events = Events(event_of(each) for each in _events.decode_lines(answer.body))
    events.next = answer.headers.get(b"x-journal-next", b"").decode()
    return events
