"""A real server over a real core, in the test's own event loop and on its clock."""

import asyncio
import contextlib
import io
import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from holdfast.clock import Alarm, Clock
from holdfast.dice import SystemDice
from holdfast.doors.http.app import HttpDoor
from holdfast.doors.http.connections.connections import HttpConnections
from holdfast.doors.http.health import Health
from holdfast.doors.http.hosts import Hosts
from holdfast.doors.http.request_bodies import limits_for
from holdfast.doors.http.routes import make_fallback
from holdfast.doors.identity import Identity, Open
from holdfast.model.errors import Unauthenticated
from holdfast.model.names import QueueRef
from holdfast.model.scopes import Scope
from holdfast.runtime import LoopRuntime
from holdfast.server.compose import Core, make_store
from holdfast.server.doors.backend import Backend
from holdfast.server.settings import Settings, parse_settings
from holdfast.service.access import Caller
from holdfast.service.drain import Drain
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.stores.contract import Store
from holdfast.telemetry.trace import Tracing
from holdfast.testing.listening import stop_listening
from tests.server.processes.relayed import relay

# Set to run the tests of the doors as a door process serves: `HOLDFAST_TEST_RELAYED=1 make test ARGS=tests/doors`.
IS_RELAYED = bool(os.environ.get("HOLDFAST_TEST_RELAYED"))


class Requests:
    """The requests measured by a door: (operation, queue, outcome) of each call."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, QueueRef | None, str]] = []

    def request(self, operation: str, queue: QueueRef | None, outcome: str, seconds: float) -> None:
        self.seen.append((operation, queue, outcome))


class Tokens:
    """Identities by token, for tests of what a caller may do once it is known."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = callers

    async def caller_of(self, headers: Mapping[bytes, bytes], peer: object | None) -> Caller:
        token = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
        if token not in self._callers:
            raise Unauthenticated("give a token")
        return self._callers[token]


def caller(tenant: str, *scopes: str, subject: str = "") -> Caller:
    return Caller(tenant=tenant, scopes=frozenset(Scope(each) for each in scopes), subject=subject)


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:500]!r}>"


class Api:
    """The server as a caller with one token sees it."""

    def __init__(self, url: str, http: aiohttp.ClientSession, token: str | None = None) -> None:
        self.url = url
        self.http = http
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def with_token(self, token: str) -> "Api":
        return Api(self.url, self.http, token)

    async def call(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
        **query: Any,
    ) -> Answer:
        """`query` is added to the path, which may be encoded already."""
        if document is not None:
            data = io.BytesIO(json.dumps(document).encode())
        async with self.http.request(
            method,
            self.url + path if not query else aiohttp.client.URL(self.url + path, encoded=True).update_query(query),
            data=data,
            headers={**self.headers, **(headers or {})},
            timeout=aiohttp.ClientTimeout(total=30),
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, document: Any = None, **more: Any) -> Answer:
        return await self.call("POST", path, document, **more)

    async def put(self, path: str, document: Any = None, **more: Any) -> Answer:
        return await self.call("PUT", path, document, **more)

    async def delete(self, path: str, **more: Any) -> Answer:
        return await self.call("DELETE", path, **more)

    # --- What most tests begin with ----------------------------------------------------------------------------

    async def enqueue(self, *payloads: Any, queue: str = "jobs", tenant: str = "acme", **options: Any) -> list[str]:
        """One message each, with the same options; answers their ids."""
        messages = [{"payload": payload, **options} for payload in payloads]
        answer = await self.post("/v1/queue/enqueue", {"tenant": tenant, "queue": queue, "messages": messages})
        assert answer.status == 200, answer
        return [each["id"] for each in answer.json["messages"]]

    async def dequeue(self, limit: int = 1, queue: str = "jobs", tenant: str = "acme", **options: Any) -> list[Any]:
        asked = {"tenant": tenant, "queue": queue, "limit": limit, **options}
        answer = await self.post("/v1/queue/dequeue", asked)
        assert answer.status == 200, answer
        return list(answer.json["messages"])

    async def fail(self, *payloads: Any, queue: str = "jobs", tenant: str = "acme", error: str = "boom") -> list[str]:
        """Make failed messages, and return their ids."""
        ids = await self.enqueue(*payloads, queue=queue, tenant=tenant)
        receipts = [each["receipt"] for each in await self.dequeue(len(ids), queue, tenant)]
        nack = {"tenant": tenant, "queue": queue, "receipts": receipts, "error": error, "final": True}
        answer = await self.post("/v1/queue/nack", nack)
        assert answer.status == 200, answer
        return ids


class Server(Api):
    def __init__(self, url: str, http: aiohttp.ClientSession, core: Core, drain: Drain, requests: Requests) -> None:
        super().__init__(url, http)
        self.core = core
        self.drain = drain
        self.requests = requests


@contextlib.asynccontextmanager
async def serve(
    clock: Clock,
    *,
    store: str | Store = "memory://",
    identity: Identity | None = None,
    tracing: Tracing | None = None,
    turns: RequestTurns | None = None,
    is_relayed: bool = IS_RELAYED,
    **settings: Any,
) -> AsyncIterator[Server]:
    """`store` is a URL, or a store of the test's own. `is_relayed`: the door reaches it over a link."""
    parsed = parse_settings(settings)
    runtime = LoopRuntime(clock, clock if isinstance(clock, Alarm) else None)
    core = Core(make_store(store, parsed, SystemDice()) if isinstance(store, str) else store, runtime, parsed)
    await core.open()
    relaying = contextlib.AsyncExitStack()
    backend: Backend = (await relaying.enter_async_context(relay(core))).backend if is_relayed else core
    drain, requests = Drain(), Requests()

    async def render() -> bytes:
        return b"holdfast_up 1\n"

    health = Health(drain=drain, check_store=backend.check_store, render=render)
    door = HttpDoor(
        identity=identity or Open(),
        hosts=Hosts() if identity is None else None,
        open_session=backend.open_session,
        limits=limits_for(parsed.max_payload),
        observer=requests,
        tracing=tracing or Tracing(),
        drain=drain,
        fallback=make_fallback(health),
    )
    connections = HttpConnections(door, door.hot_calls, turns=turns)
    listening = await asyncio.get_running_loop().create_server(connections.make, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        async with aiohttp.ClientSession() as http:
            yield Server(url, http, core, drain, requests)
    finally:
        backend.begin_drain()
        await _end(listening, connections)
        await relaying.aclose()
        await core.close()
        await runtime.aclose()


@contextlib.asynccontextmanager
async def serve_backend(backend: Backend, settings: Settings) -> AsyncIterator[str]:
    """Serve HTTP in front of any backend, and return the URL."""
    drain = Drain()

    async def render() -> bytes:
        return b"holdfast_up 1\n"

    door = HttpDoor(
        identity=Open(),
        hosts=Hosts(),
        open_session=backend.open_session,
        limits=limits_for(settings.max_payload),
        observer=Requests(),
        tracing=Tracing(),
        drain=drain,
        fallback=make_fallback(Health(drain=drain, check_store=backend.check_store, render=render)),
    )
    connections = HttpConnections(door, door.hot_calls, turns=None)
    listening = await asyncio.get_running_loop().create_server(connections.make, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        backend.begin_drain()
        await _end(listening, connections)


async def _end(listening: asyncio.Server, connections: HttpConnections) -> None:
    await stop_listening(listening)
    while connections.open or connections.tasks:
        for connection in connections.open:
            connection.shut_down()
        await asyncio.sleep(0.001)
    await listening.wait_closed()
