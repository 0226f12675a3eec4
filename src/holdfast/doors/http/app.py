"""The ASGI application of the HTTP door. It finds hot routes by one dictionary look-up; Starlette finds the others."""

import itertools
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast.clock import steady_s
from holdfast.doors.http.calls import HttpCall, error_answer, exchange_of, send_body
from holdfast.doors.http.connections.asgi import Asgi, AsgiScope, Receive, Send
from holdfast.doors.http.connections.exchange import Exchange
from holdfast.doors.http.hosts import Hosts
from holdfast.doors.http.operations import messages, streams
from holdfast.doors.http.origin import check_origin
from holdfast.doors.http.request_bodies import BodyLimits, CallerLeft
from holdfast.doors.identity import AUTHORIZATION, CallerSessions, Identity
from holdfast.model.errors import Forbidden, HoldfastError, StoreUnavailable
from holdfast.service.access import EVERY_TENANT, Caller
from holdfast.service.drain import Drain
from holdfast.service.queue_refs import QueueRefs
from holdfast.service.session import Session
from holdfast.telemetry.observer import CallObserver
from holdfast.telemetry.trace import Tracing
from holdfast.wire.operations import OPERATIONS

Handler = Callable[[HttpCall], Awaitable[None]]

_HOT_HANDLERS: dict[str, Handler] = {
    "/v1/queue/enqueue": messages.enqueue,
    "/v1/queue/dequeue": messages.dequeue,
    "/v1/queue/dequeueWithState": messages.dequeue_with_state,
    "/v1/queue/exchange": messages.exchange,
    "/v1/queue/subscribe": streams.subscribe,
    "/v1/queue/subscribeWithState": streams.subscribe_with_state,
    "/v1/queue/ack": messages.ack,
    "/v1/queue/nack": messages.nack,
    "/v1/queue/extend": messages.extend,
    "/v1/queue/release": messages.release,
    "/v1/queue/remove": messages.remove,
    "/v1/queue/state": messages.save_state,
}

# By path: the method, the operation's name in metrics, and the handler.
HOT_ROUTES: dict[str, tuple[str, str, Handler]] = {
    route.path: (route.method, route.measured_as or operation.name, _HOT_HANDLERS[route.path])
    for operation in OPERATIONS.values()
    for route in operation.routes
    if route.path in _HOT_HANDLERS
}


# POST routes whose response is one document, and which usually respond without waiting.
_SHORT = frozenset(HOT_ROUTES) - {"/v1/queue/subscribe", "/v1/queue/subscribeWithState", "/v1/queue/state"}


class HttpDoor:
    """The ASGI application that runs every HTTP call."""

    def __init__(
        self,
        *,
        identity: Identity,
        hosts: Hosts | None,
        open_session: Callable[[Caller], Session],
        limits: BodyLimits,
        observer: CallObserver,
        tracing: Tracing,
        drain: Drain,
        fallback: Callable[["HttpDoor"], Asgi],
    ) -> None:
        """Create the door.

        `hosts` None accepts any `Host`. `fallback` makes the application for all routes that are not hot.
        """
        self._identity = identity
        self._hosts = hosts
        self._sessions = CallerSessions(identity, open_session)
        self._limits = limits
        self._observer = observer
        self._tracing = tracing
        self._names = QueueRefs()
        self._drain = drain
        self._fallback = fallback(self)
        # Makes correlation ids. Most calls need one, so it runs entirely in C.
        self._mint: Callable[[], str] = map(f"{secrets.token_hex(8)}-%d".__mod__, itertools.count(1)).__next__
        # By path: POST requests that run without a task if they arrive whole.
        self.hot_calls = {
            path.encode(): self._hot_call(operation, handler)
            for path, (_, operation, handler) in HOT_ROUTES.items()
            if path in _SHORT
        }

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this door speaks only HTTP, not {scope['type']}")
        route = HOT_ROUTES.get(scope["path"])
        if route is not None and route[0] == scope["method"]:
            await self.run(route[1], route[2], scope)
            return
        # Some of the other paths, such as health and unknown paths, do not go through `run`, so check their host here.
        exchange = exchange_of(scope)
        try:
            self.check_host(exchange.head.headers)
        except Forbidden as error:
            await self._refuse(error, None, exchange)
        else:
            await self._fallback(scope, receive, send)

    def _hot_call(self, operation: str, handler: Handler) -> Callable[[Exchange], Coroutine[Any, Any, None]]:
        return partial(self._run, operation, handler, None, self._identity)

    async def run(self, operation: str, handler: Handler, scope: AsgiScope, identity: Identity | None = None) -> None:
        """Run one call. `identity`, if given, replaces the door's own."""
        await self._run(operation, handler, scope, identity or self._identity, exchange_of(scope))

    async def _run(
        self, operation: str, handler: Handler, scope: AsgiScope | None, identity: Identity, exchange: Exchange
    ) -> None:
        """Run one call, from its credential to its response or its error."""
        started_at = steady_s()
        call: HttpCall | None = None
        outcome = "ok"
        head = exchange.head
        try:
            if self._hosts is not None and head.host not in self._hosts.accepted:
                self._hosts.check(head.headers)
            if head.is_from_page:
                check_origin(head.headers)
            session = self._sessions.anyone
            if session is None or identity is not self._identity:
                session = await self._identify(identity, exchange)
            call = HttpCall(
                session,
                exchange,
                scope,
                self._limits,
                self._mint,
                operation=operation,
                names=self._names,
                tracing=self._tracing,
            )
            if self._drain.is_draining:
                # `closing` tells the caller that no part of its call was carried out.
                raise StoreUnavailable("this server is shutting down; call another one, or retry later", closing=True)
            await handler(call)
        except CallerLeft:
            outcome = "left"
        except Exception as error:
            outcome = error.code if isinstance(error, HoldfastError) else "internal"
            if call is None and outcome == "unauthenticated":
                exchange.connection.note_unidentified()
            await self._refuse(error, call, exchange)
        # Metrics must not name a queue that the caller has no access to.
        queue = None if call is None or outcome in _OUTSIDERS else call.queue
        operation = operation if call is None else call.operation
        self._observer.request(operation, queue, outcome, steady_s() - started_at)

    async def _identify(self, identity: Identity, exchange: Exchange) -> Session:
        """Return the session of the caller. Raise `Unauthenticated` if the credential is missing or invalid."""
        headers = exchange.head.headers
        caller = await identity.caller_of(headers, exchange.peer)
        if caller.tenant != EVERY_TENANT:
            exchange.connection.note_tenant(caller.tenant, headers.get(AUTHORIZATION))
        return self._sessions.of(caller)

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `Forbidden` for a request whose `Host` is not one of the server's names."""
        if self._hosts is not None:
            self._hosts.check(headers)

    async def _refuse(self, error: Exception, call: HttpCall | None, exchange: Exchange) -> None:
        if call is None:
            correlation_id = exchange.head.correlation_id or self._mint()
            is_body_read = not exchange.head.has_body
        else:
            correlation_id, is_body_read = call.correlation_id, call.is_body_read
        status, body, headers = error_answer(error, correlation_id, None if call is None else call.queue)
        if call is not None and call.has_begun:
            # A response that has begun cannot become an error. The caller learns of it by the end of the connection.
            raise CutOff from error
        if self._drain.is_draining or not is_body_read:
            # The rest of the body would be parsed as the next request.
            headers.append((b"connection", b"close"))
        if not exchange.answer(status, headers, body):
            await send_body(exchange.events().send, status, body, headers)


_OUTSIDERS = frozenset({"unauthenticated", "forbidden"})


class CutOff(Exception):
    """A streamed response failed after it had begun."""
