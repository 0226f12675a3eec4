"""The routes that are not hot: Starlette finds the path, the door runs the handler."""

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

# Routes whose handlers read and write by themselves.
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
    """One method of one path. `identity` says who calls it where the server's own does not."""

    method: str
    path: str
    measured_as: str
    handler: Handler
    identity: Identity | None = None


def served_routes(metrics: Handler) -> list[ServedRoute]:
    """Return a route for each row of the table but the hot ones, which the door takes before they get here."""
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


def make_rest(health: Health, more: Iterable[BaseRoute] = ()) -> Callable[[HttpDoor], Asgi]:
    """Return everything that is not hot; `more` are routes of others, without a credential of ours."""
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
    """`open_routes` need no credential."""
    paths: dict[str, dict[str, ServedRoute]] = {}
    for path, (method, measured_as, handler) in HOT_ROUTES.items():
        # The door takes these before they get here, but for a wrong method.
        paths.setdefault(path, {})[method] = ServedRoute(method, path, measured_as, handler)
    for each in served:
        handler = _without_body(each.handler) if each.method in ("GET", "DELETE") else each.handler
        paths.setdefault(each.path, {})[each.method] = each._replace(handler=handler)
    routes = [Route(path.replace("}", ":name}"), _Path(door, methods)) for path, methods in paths.items()]
    router = Router([*open_routes, *routes], redirect_slashes=False, default=_not_found)

    async def route(scope: AsgiScope, receive: Receive, send: Send) -> None:
        # An encoded slash is part of a name (and no name has one); decoded, it would be taken for another path's.
        if b"%2f" in scope.get("raw_path", b"").lower():
            kept = scope["raw_path"].decode("ascii", "replace").replace("%2F", "%252F").replace("%2f", "%252f")
            scope = {**scope, "path": unquote(kept)}
        await router(scope, receive, send)

    return route


def _without_body(handler: Handler) -> Handler:
    """A body that nobody asked for is read and forgotten: unread, its end would be taken for the caller's leaving."""

    async def handle(call: HttpCall) -> None:
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
    return b"x-correlation-id", (exchange_of(scope).head.correlation_id or secrets.token_hex(12)).encode()
