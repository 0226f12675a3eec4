"""The types of the rows in the table of operations (`wire/operations.py`)."""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.model.scopes import Scope
from holdfast.wire.http.answers import AnswerShape

R = TypeVar("R")
A = TypeVar("A")


class Target(Enum):
    """The kind of thing that an operation acts on. The access check asks whether the caller may act on it."""

    QUEUE = auto()
    TENANT = auto()
    SERVER = auto()


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP method and path.

    By default the door reads the request from the path, the query (GET and DELETE) or the body, and writes `answer`. A
    route with `body`, or with `streams` and no `answer`, has its own handler, which reads the request and writes the
    response itself.
    """

    method: str
    path: str
    # Empty: the operation's summary.
    summary: str = ""
    # The operation's name in metrics. Empty: the operation's own name.
    measured_as: str = ""
    answer: AnswerShape | None = None
    body: Any = None
    is_body_optional: bool = False
    # The name of the request field that is the whole body, and the type that the OpenAPI document gives for it.
    body_is: str = ""
    body_type: Any = None
    # Fields of the request whose values follow from the path, such as `paused` in `/pause` and `/resume`.
    fixed: Mapping[str, Any] = {}
    # Query parameters that the route's own handler reads.
    query: tuple[str, ...] = ()
    status: int = 200
    # Error statuses of this route, besides those that every route may return.
    refusals: tuple[int, ...] = ()
    # Media types of the response other than JSON, each with the type of one streamed piece.
    streams: tuple[tuple[str, Any], ...] = ()
    answer_headers: tuple[str, ...] = ()
    # Whether the body may also be multipart/form-data.
    takes_parts: bool = False
    # Whether the operation stops after its current step when the caller disconnects.
    ends_with_caller: bool = False
    # Whether the server declares this route for another operation, and clients read this operation's result from it.
    is_view: bool = False


class Operation(msgspec.Struct, Generic[R, A], frozen=True, kw_only=True):
    """One operation: its name, request, result, required scope and HTTP routes."""

    # Also the name of the service method.
    name: str
    request: type[R]
    answer: type[A]
    scope: Scope
    summary: str
    target: Target = Target.QUEUE
    is_operators_only: bool = False
    # Whether a client may send the request again when no response arrived. A function decides by the request.
    is_repeatable: bool | Callable[[Any], bool] = True
    # Error codes that count as success for a retry whose first request got no response: the first request has already
    # done the work. For operations that remove something.
    done_if: tuple[str, ...] = ()
    # Whether its duration has no limit, so that clients set no timeout.
    is_long: bool = False
    routes: tuple[Route, ...] = ()
    # Whether doors, the session and clients have hand-written code for it, and its service method another signature.
    is_hot: bool = False
    # Whether Cap'n Proto carries it by name, in the method `operate`. Otherwise the schema has a method for it or does
    # not offer it.
    is_by_name: bool = True

    def may_repeat(self, request: R) -> bool:
        """Return whether a client may send `request` again when no response arrived."""
        return self.is_repeatable if isinstance(self.is_repeatable, bool) else self.is_repeatable(request)
