"""The routes that are not hot: Starlette finds the path, the door runs the handler."""

import secrets
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import BaseRoute, Route, Router

from holdfast.doors.http import admin, compatible, journal, ledger, payloads, schedules
from holdfast.doors.http.app import HOT_ROUTES, Asgi, Handler, HttpDoor
from holdfast.doors.http.calls import (
    JSON_TYPE,
    Call,
    RawHeaders,
    given_correlation_id,
    headers_of,
    send_body,
)
from holdfast.doors.http.exchange import AsgiScope, Receive, Send
from holdfast.doors.http.health import Answer, Health
from holdfast.doors.http.openapi import encode_document
from holdfast.doors.http.ways import Way
from holdfast.wire.http import encode

__all__ = ["WAYS", "Way", "make_rest", "make_router", "open_route"]

# Every route with a credential, but for the hot ones and /metrics.
WAYS: tuple[Way, ...] = (
    *payloads.WAYS,
    *admin.WAYS,
    *schedules.WAYS,
    *journal.WAYS,
    *ledger.WAYS,
    *compatible.WAYS,
)


def make_rest(health: Health, more: Iterable[BaseRoute] = ()) -> Callable[[HttpDoor], Asgi]:
    """Everything that is not hot; `more` are routes of others, without a credential of ours."""
    ways = [*WAYS, *health.ways()]
    document = encode_document(ways)

    async def openapi() -> Answer:
        return 200, document, [JSON_TYPE]

    open_ways = [
        open_route("/healthz", health.healthz),
        open_route("/readyz", health.readyz),
        open_route("/openapi.json", openapi),
        *more,
    ]
    return lambda door: make_router(door, ways, open_ways)


def make_router(door: HttpDoor, ways: Iterable[Way], open_ways: Iterable[BaseRoute]) -> Asgi:
    """`open_ways` need no credential."""
    paths: dict[str, dict[str, Way]] = {}
    for path, (method, operation, handler) in HOT_ROUTES.items():
        # The door takes these before they get here, but for a wrong method.
        paths.setdefault(path, {})[method] = Way(method, path, operation, handler)
    for way in ways:
        handler = _without_body(way.handler) if way.method in ("GET", "DELETE") else way.handler
        paths.setdefault(way.path, {})[way.method] = way._replace(handler=handler)
    routes = [Route(path.replace("}", ":name}"), _Path(door, methods)) for path, methods in paths.items()]
    router = Router([*open_ways, *routes], redirect_slashes=False, default=_not_found)

    async def route(scope: AsgiScope, receive: Receive, send: Send) -> None:
        # An encoded slash is part of a name (and no name has one); decoded, it would be taken for another path's.
        if b"%2f" in scope.get("raw_path", b"").lower():
            kept = scope["raw_path"].decode("ascii", "replace").replace("%2F", "%252F").replace("%2f", "%252f")
            scope = {**scope, "path": unquote(kept)}
        await router(scope, receive, send)

    return route


def _without_body(handler: Handler) -> Handler:
    """A body that nobody asked for is read and forgotten: unread, its end would be taken for the caller's leaving."""

    async def handle(call: Call) -> None:
        await call.body()
        await handler(call)

    return handle


class _Name(Convertor[str]):
    """A part of a path, empty too: what is no name is refused as such, and not as a path that nobody knows."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _Name())


class _Path:
    """An ASGI application of one path's methods: Starlette hands calls to it as they are."""

    def __init__(self, door: HttpDoor, methods: dict[str, Way]) -> None:
        self._door = door
        self._methods = methods

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        way = self._methods.get(scope["method"])
        if way is None:
            await _refuse_method(scope, send, self._methods)
        else:
            await self._door.run(way.operation, way.handler, scope, receive, send, way.identity)


def open_route(path: str, answer: Callable[[], Awaitable[Answer]]) -> Route:
    """A path that anybody may GET."""
    return Route(path, _OpenPath(answer))


class _OpenPath:
    def __init__(self, answer: Callable[[], Awaitable[Answer]]) -> None:
        self._answer = answer

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        # Of an answer to HEAD the server keeps the body to itself.
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse_method(scope, send, ("GET", "HEAD"))
            return
        status, body, headers = await self._answer()
        await send_body(send, status, body, [*headers, _correlation_id(scope)])


async def _refuse_method(scope: AsgiScope, send: Send, methods: Iterable[str]) -> None:
    allowed = ", ".join(sorted(methods))
    await _refuse(scope, send, 405, f"this path takes {allowed}", [(b"allow", allowed.encode())])


async def _not_found(scope: AsgiScope, receive: Receive, send: Send) -> None:
    await _refuse(scope, send, 404, "there is nothing at this path: GET /openapi.json lists what there is", [])


async def _refuse(scope: AsgiScope, send: Send, status: int, message: str, headers: RawHeaders) -> None:
    body = encode({"error": {"code": "invalid_argument", "message": message}})
    # Whatever body the call has is not read: it must not be taken for the next call.
    close = (b"connection", b"close")
    await send_body(send, status, body, [JSON_TYPE, _correlation_id(scope), *headers, close])


def _correlation_id(scope: AsgiScope) -> tuple[bytes, bytes]:
    return b"x-correlation-id", (given_correlation_id(headers_of(scope)) or secrets.token_hex(12)).encode()
