"""The routes that are not hot: Starlette finds the path, the door runs the handler."""

from collections.abc import Iterable
from typing import NamedTuple

from starlette.routing import Route, Router

from holdfast.doors.http.app import HOT_ROUTES, Asgi, Handler, HttpDoor
from holdfast.doors.http.calls import JSON_TYPE, AsgiScope, RawHeaders, Receive, Send, send_body
from holdfast.wire.http import encode


class Way(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    operation: str
    handler: Handler


def make_router(door: HttpDoor, ways: Iterable[Way], open_ways: Iterable[Route]) -> Asgi:
    """`open_ways` need no credential."""
    paths: dict[str, dict[str, Way]] = {}
    for path, (method, operation, handler) in HOT_ROUTES.items():
        # The door takes these before they get here, but for a wrong method.
        paths.setdefault(path, {})[method] = Way(method, path, operation, handler)
    for way in ways:
        paths.setdefault(way.path, {})[way.method] = way
    routes = [Route(path, _Path(door, methods)) for path, methods in paths.items()]
    return Router([*open_ways, *routes], redirect_slashes=False, default=_not_found)


class _Path:
    """An ASGI application of one path's methods: Starlette hands calls to it as they are."""

    def __init__(self, door: HttpDoor, methods: dict[str, Way]) -> None:
        self._door = door
        self._methods = methods

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        way = self._methods.get(scope["method"])
        if way is None:
            allowed = ", ".join(sorted(self._methods))
            await _refuse(send, 405, f"this path takes {allowed}", [(b"allow", allowed.encode())])
        else:
            await self._door.run(way.operation, way.handler, scope, receive, send)


async def _not_found(scope: AsgiScope, receive: Receive, send: Send) -> None:
    await _refuse(send, 404, "there is nothing at this path: GET /openapi.json lists what there is", [])


async def _refuse(send: Send, status: int, message: str, headers: RawHeaders) -> None:
    body = encode({"error": {"code": "invalid_argument", "message": message}})
    await send_body(send, status, body, [JSON_TYPE, *headers])
