"""The form of a row in the table of operations (`wire/operations.py`)."""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.model.scopes import Scope
from holdfast.wire.http.answers import AnswerShape

R = TypeVar("R")
A = TypeVar("A")


class Target(Enum):
    """The thing that an operation is about, by which its caller is permitted."""

    QUEUE = auto()
    TENANT = auto()
    SERVER = auto()


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method and path of the HTTP door.

    By default the door reads the request from the path, the query (GET and DELETE) or the body, and writes `answer`. A
    route with `body`, or with `streams` and no answer, has a handler of its own, which reads and writes by itself.
    """

    method: str
    path: str
    # If it differs from the operation's.
    summary: str = ""
    # The name under which calls are measured, if it is not the operation's.
    measured_as: str = ""
    answer: AnswerShape | None = None
    body: Any = None
    is_body_optional: bool = False
    # The field of the request that is the whole body, and its documented type.
    body_is: str = ""
    body_type: Any = None
    # Fields of the request that the path decides.
    fixed: Mapping[str, Any] = {}
    # Fields of the query, where the handler reads them by itself.
    query: tuple[str, ...] = ()
    status: int = 200
    # Statuses of its own, besides those that every call may meet.
    refusals: tuple[int, ...] = ()
    # Media types of an answer other than JSON, each with the type of one piece.
    streams: tuple[tuple[str, Any], ...] = ()
    answer_headers: tuple[str, ...] = ()
    takes_parts: bool = False
    # It ends, after the step it is at, when the caller leaves.
    ends_with_caller: bool = False
    # Clients read this operation's answer from another operation's route, which the server has.
    is_view: bool = False


class Operation(msgspec.Struct, Generic[R, A], frozen=True, kw_only=True):
    # Also the name of the service method.
    name: str
    request: type[R]
    answer: type[A]
    scope: Scope
    summary: str
    target: Target = Target.QUEUE
    of_operators_only: bool = False
    # Whether a client may send it again when no answer came; by its request, if that decides.
    is_repeatable: bool | Callable[[Any], bool] = True
    # Refusals that mean, after a try that went unanswered, that this try did it. For operations that remove something.
    done_if: tuple[str, ...] = ()
    # It takes as long as it takes: clients set no time limit.
    is_long: bool = False
    routes: tuple[Route, ...] = ()
    # Whether doors, session and clients have hand-written paths for it, and its service method another signature.
    is_hot: bool = False
    # Whether Cap'n Proto carries it by its name; else it has a method of its own in the schema, or none.
    is_by_name: bool = True

    def may_repeat(self, request: R) -> bool:
        return self.is_repeatable if isinstance(self.is_repeatable, bool) else self.is_repeatable(request)
