"""A real framed door over a real core, in the test's own event loop and on its clock."""

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

from holdfast.clock import Alarm, Clock
from holdfast.dice import SystemDice
from holdfast.doors.framed.door import FramedDoor
from holdfast.doors.identity import Identity, Open
from holdfast.runtime import LoopRuntime
from holdfast.server.compose import Core, make_store
from holdfast.server.doors.backend import Backend
from holdfast.server.settings import parse_settings
from holdfast.service.drain import Drain
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.stores.contract import Store
from holdfast.telemetry.trace import Tracing
from tests.doors.serving import IS_RELAYED, Requests
from tests.server.processes.relayed import relay


class FramedServer:
    def __init__(self, port: int, core: Core, door: FramedDoor, drain: Drain, requests: Requests) -> None:
        self.port = port
        self.url = f"holdfast://127.0.0.1:{port}"
        self.core = core
        self.door = door
        self.drain = drain
        self.requests = requests


@contextlib.asynccontextmanager
async def serve_framed(
    clock: Clock,
    *,
    store: str | Store = "memory://",
    identity: Identity | None = None,
    tracing: Tracing | None = None,
    tls: ssl.SSLContext | None = None,
    turns: RequestTurns | None = None,
    keepalive_s: float | None = None,
    patience_s: float | None = None,
    is_relayed: bool = IS_RELAYED,
    **settings: Any,
) -> AsyncIterator[FramedServer]:
    """`store` is a URL, or a store of the test's own. `is_relayed`: the door reaches it over a link."""
    parsed = parse_settings(settings)
    runtime = LoopRuntime(clock, clock if isinstance(clock, Alarm) else None)
    core = Core(make_store(store, parsed, SystemDice()) if isinstance(store, str) else store, runtime, parsed)
    await core.open()
    relaying = contextlib.AsyncExitStack()
    backend: Backend = (await relaying.enter_async_context(relay(core))).backend if is_relayed else core
    drain, requests = Drain(), Requests()
    door = FramedDoor(
        identity=identity or Open(),
        open_session=backend.open_session,
        max_payload=parsed.max_payload,
        observer=requests,
        tracing=tracing or Tracing(),
        drain=drain,
        turns=turns,
    )
    door.keepalive_s = keepalive_s or door.keepalive_s
    door.patience_s = patience_s or door.patience_s
    bound = socket.create_server(("127.0.0.1", 0))
    await door.start([bound], tls)
    try:
        yield FramedServer(bound.getsockname()[1], core, door, drain, requests)
    finally:
        backend.begin_drain()
        await door.close(1.0)
        await relaying.aclose()
        await core.close()
        await runtime.aclose()
