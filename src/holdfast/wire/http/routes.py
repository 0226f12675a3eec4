"""Write a request into the path, query and body of an HTTP route, and read it from them."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, TypeVar, get_args
from urllib.parse import quote, urlencode

import msgspec

from holdfast.model.errors import InvalidArgument
from holdfast.model.names import QueueRef
from holdfast.wire.binding import Binding
from holdfast.wire.http.bodies import encode
from holdfast.wire.http.fields import HTTP_FIELDS
from holdfast.wire.operation import Operation, Route, Target
from holdfast.wire.operations import OPERATIONS
from holdfast.wire.requests import Nothing

R = TypeVar("R", bound=msgspec.Struct)

_FLAGS = {"0": False, "false": False, "1": True, "true": True}
_REF = ("tenant", "queue")


def integer_of(fields: Mapping[str, str], name: str) -> int | None:
    """Return a query parameter as a number, or None if it is missing. The model checks its range.

    Raise `InvalidArgument` if it is not a whole number.
    """
    text = fields.get(name)
    if text is None:
        return None
    # No valid number has 20 digits, and parsing a very long one would take long.
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidArgument(f"{name} {text[:80]!r} is not a whole number", field=name)
    return int(text)


def flag_of(fields: Mapping[str, str], name: str) -> bool:
    """Return a query parameter as a boolean, False if it is missing. Raise `InvalidArgument` for another value."""
    text = fields.get(name, "0")
    if text not in _FLAGS:
        raise InvalidArgument(f"{name} {text[:80]!r} is neither 1 nor 0", field=name)
    return _FLAGS[text]


class RouteBinding(Generic[R]):
    """The conversion of an operation's request to and from one HTTP route."""

    def __init__(self, operation: Operation[R, Any], route: Route) -> None:
        self.route = route
        in_path = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
        self._path_fields = [name for name in in_path if name not in _REF]
        self.is_ref_in_path = "queue" in in_path or operation.target is not Target.QUEUE
        self.has_body = route.method in ("POST", "PUT")
        more = () if self.is_ref_in_path or not self.has_body else tuple((name, str | None, None) for name in _REF)
        self._binding = Binding(
            operation.request, HTTP_FIELDS, apart={*self._path_fields, *route.fixed, route.body_is}, more=more
        )
        fields = self._binding.fields
        # The documented type of the body.
        self.body_type: Any = None
        if self.has_body:
            self.body_type = route.body_type or (self._binding.type if fields or more else Nothing)
        self.query_fields: tuple[str, ...] = ()
        if not self.has_body:
            self.query_fields = (*(() if self.is_ref_in_path else _REF), *fields)
        # A route that takes no query refuses one only if tenant and queue are in its path. Other routes ignore it.
        self.checks_query = not self.has_body or self.is_ref_in_path
        self._kinds = {field.name: field for field in msgspec.structs.fields(self._binding.type)}
        self.decoder = msgspec.json.Decoder(dict[str, Any] if route.body_is else self._binding.type)

    # --- The client's side -------------------------------------------------------------------------------------------

    def write(self, ref: QueueRef, request: R) -> tuple[str, bytes | None]:
        """Return the path with its query, and the body."""
        path = self.route.path.format(
            tenant=quote(ref.tenant, safe=""),
            queue=quote(ref.queue, safe=""),
            **{name: quote(str(getattr(request, name)), safe="") for name in self._path_fields},
        )
        if self.route.body_is:
            return path, encode(getattr(request, self.route.body_is))
        names = {} if self.is_ref_in_path else {"tenant": ref.tenant, "queue": ref.queue}
        if self.has_body:
            # A document without fields is not sent.
            has_fields = self._binding.fields or names
            return path, encode(self._binding.document(request, **names)) if has_fields else None
        document = self._binding.document(request)
        given = {name: getattr(document, name) for name, kind in self._kinds.items()}
        fields = {
            **names,
            **{name: _text_of(value) for name, value in given.items() if value != self._kinds[name].default},
        }
        return path + (f"?{urlencode(fields, quote_via=quote)}" if fields else ""), None

    # --- The door's side ---------------------------------------------------------------------------------------------

    def read(self, ref: QueueRef, path: Mapping[str, str], document: Any) -> R:
        """Return the request of a decoded body, or of a query that `read_query` has read.

        `path` gives the values of the path's parameters.
        """
        apart = {**self.route.fixed, **{name: path[name] for name in self._path_fields}}
        if self.route.body_is:
            apart[self.route.body_is] = document
        return self._binding.request(document, ref, **apart)

    def read_query(self, fields: Mapping[str, str]) -> Any:
        """Return the document of a query. Raise `InvalidArgument` for a missing or malformed parameter."""
        given: dict[str, Any] = {}
        for name, kind in self._kinds.items():
            if name not in fields:
                if kind.required:
                    raise InvalidArgument(f"the query parameter {name} is missing", field=name)
            elif kind.type is bool:
                given[name] = flag_of(fields, name)
            elif int in (kind.type, *get_args(kind.type)):
                given[name] = integer_of(fields, name)
            elif str in (kind.type, *get_args(kind.type)):
                given[name] = fields[name]
            else:
                given[name] = _json_of(name, fields[name], kind.type)
        return self._binding.type(**given)


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return encode(value).decode() if isinstance(value, msgspec.Struct) else str(value)


def _json_of(name: str, text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{name}: {error}", field=name) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidArgument(f"{name} is not a JSON document", field=name) from None


@cache
def bound(operation: str, number: int = 0) -> RouteBinding[Any]:
    """Return the binding of one of an operation's routes."""
    declared = OPERATIONS[operation]
    return RouteBinding(declared, declared.routes[number])
