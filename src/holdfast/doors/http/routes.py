"""The routes that are not hot: Starlette matches the path, and the door runs the handler."""

import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import BaseRoute, Route, Router

from holdfast.doors.http.app import HOT_ROUTES, Handler, HttpDoor
from holdfast.doors.http.calls import (
    JSON_TYPE,
    HttpCall,
    RawHeaders,
    exchange_of,
    send_body,
)
from holdfast.doors.http.connections.asgi import Asgi, AsgiScope, Receive, Send
from holdfast.doors.http.health import Answer, Health
from holdfast.doors.http.openapi import encode_document
from holdfast.doors.http.operations import compatible, journal, ledger, payloads, streams, table_routes
from holdfast.doors.identity import Identity
from holdfast.wire.http.bodies import encode
from holdfast.wire.http.routes import bound
from holdfast.wire.operations import OPERATIONS

# Routes with a handler of their own, which reads the request and writes the response itself.
_OWN_HANDLERS: dict[tuple[str, str], Handler] = {
    ("GET", "/v1/tenants/{tenant}"): table_routes.get_tenant,
    ("GET", "/v1/queue/watch"): streams.watch,
    ("GET", "/v1/journal"): journal.read,
    ("POST", "/v1/queue/payload"): payloads.read_part,
    ("POST", "/v1/queue/ledger/claim"): ledger.claim,
    ("POST", "/enqueue"): compatible.enqueue,
    ("GET", "/dequeue"): compatible.dequeue,
    ("POST", "/dequeue"): compatible.dequeue_by_post,
    ("POST", "/ack"): compatible.ack,
    ("POST", "/nack"): compatible.nack,
}


class ServedRoute(NamedTuple):
    """One method of one path. `identity`, if set, replaces the server's identity for this route."""

    method: str
    path: str
    measured_as: str
    handler: Handler
    identity: Identity | None = None


def served_routes(metrics: Handler) -> list[ServedRoute]:
    """Return a route for each route in the table of operations, except the hot ones, which the door runs itself."""
    own = {**_OWN_HANDLERS, ("GET", "/metrics"): metrics}
    served = []
    for operation in OPERATIONS.values():
        for number, route in enumerate(operation.routes):
            if route.is_view or route.path in HOT_ROUTES:
                continue
            handler = own.get((route.method, route.path))
            if handler is None:
                handler = table_routes.make_handler(operation, bound(operation.name, number))
            served.append(ServedRoute(route.method, route.path, route.measured_as or operation.name, handler))
    return served


def make_fallback(health: Health, more: Iterable[BaseRoute] = ()) -> Callable[[HttpDoor], Asgi]:
    """Return the maker of the application for all routes that are not hot.

    `more` are further routes, which need no credential.
    """
    served = [
        each._replace(identity=health.scrapers) if each.path == "/metrics" else each
        for each in served_routes(health.metrics)
    ]

    async def openapi() -> Answer:
        return 200, encode_document(), [JSON_TYPE]

    open_routes = [
        open_route("/healthz", health.healthz),
        open_route("/readyz", health.readyz),
        open_route("/openapi.json", openapi),
        *more,
    ]
    return lambda door: make_router(door, served, open_routes)


def make_router(door: HttpDoor, served: Iterable[ServedRoute], open_routes: Iterable[BaseRoute]) -> Asgi:
    """Return the application that runs `served` and `open_routes`. The latter need no credential."""
    paths: dict[str, dict[str, ServedRoute]] = {}
    for path, (method, measured_as, handler) in HOT_ROUTES.items():
        # The door runs these itself. Here they give the allowed methods in the response to a wrong method.
        paths.setdefault(path, {})[method] = ServedRoute(method, path, measured_as, handler)
    for each in served:
        handler = _without_body(each.handler) if each.method in ("GET", "DELETE") else each.handler
        paths.setdefault(each.path, {})[each.method] = each._replace(handler=handler)
    routes = [Route(path.replace("}", ":name}"), _Path(door, methods)) for path, methods in paths.items()]
    router = Router([*open_routes, *routes], redirect_slashes=False, default=_not_found)

    async def route(scope: AsgiScope, receive: Receive, send: Send) -> None:
        # A decoded slash would make Starlette match another path. Kept encoded, it is refused as part of a name.
        if b"%2f" in scope.get("raw_path", b"").lower():
            kept = scope["raw_path"].decode("ascii", "replace").replace("%2F", "%252F").replace("%2f", "%252f")
            scope = {**scope, "path": unquote(kept)}
        await router(scope, receive, send)

    return route


def _without_body(handler: Handler) -> Handler:
    """Wrap a handler so that an unexpected body is read and dropped.

    Left unread, its end would be taken for the caller leaving.
    """

    async def handle(call: HttpCall) -> None:
        await call.body()
        await handler(call)

    return handle


class _Name(Convertor[str]):
    """A part of a path, which may be empty. The handler refuses an invalid name; an unmatched path would be a 404."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _Name())


class _Path:
    """The ASGI application of one path, which dispatches by method."""

    def __init__(self, door: HttpDoor, methods: dict[str, ServedRoute]) -> None:
        self._door = door
        self._methods = methods

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        route = self._methods.get(scope["method"])
        if route is None:
            await _refuse_method(scope, send, self._methods)
        else:
            await self._door.run(route.measured_as, route.handler, scope, route.identity)


def open_route(path: str, answer: Callable[[], Awaitable[Answer]]) -> Route:
    """Return a route that responds to GET from any caller."""
    return Route(path, _OpenPath(answer))


class _OpenPath:
    """The ASGI application of a path that needs no credential."""

    def __init__(self, answer: Callable[[], Awaitable[Answer]]) -> None:
        self._answer = answer

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        # The connection drops the body of a response to HEAD.
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse_method(scope, send, ("GET", "HEAD"))
            return
        status, body, headers = await self._answer()
        await send_body(send, status, body, [*headers, _correlation_id(scope)])


async def _refuse_method(scope: AsgiScope, send: Send, methods: Iterable[str]) -> None:
    allowed = ", ".join(sorted(methods))
    await _refuse(scope, send, 405, f"this path supports only {allowed}", [(b"allow", allowed.encode())])


async def _not_found(scope: AsgiScope, receive: Receive, send: Send) -> None:
    await _refuse(scope, send, 404, "this path does not exist; GET /openapi.json lists all paths", [])


async def _refuse(scope: AsgiScope, send: Send, status: int, message: str, headers: RawHeaders) -> None:
    body = encode({"error": {"code": "invalid_argument", "message": message}})
    # The body is not read, so the connection is closed: otherwise the body would be parsed as the next request.
    close = (b"connection", b"close")
    await send_body(send, status, body, [JSON_TYPE, _correlation_id(scope), *headers, close])


def _correlation_id(scope: AsgiScope) -> tuple[bytes, bytes]:
    return b"x-correlation-id", (exchange_of(scope).head.correlation_id or secrets.token_hex(12)).encode()
