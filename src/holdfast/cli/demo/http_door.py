"""An HTTP server for the demo's store, on a free port of the loopback interface."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import holdfast
from holdfast.clock import SystemClock
from holdfast.server.doors.backend import DoorTelemetry
from holdfast.server.doors.http import HttpServer
from holdfast.server.doors.identities import identity_of, make_door
from holdfast.server.doors.listen import listening_sockets, url_of
from holdfast.server.embedded import Embedded
from holdfast.server.scrape import CoreSource
from holdfast.server.settings import Settings
from holdfast.service.drain import Drain
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.trace import Tracing

_CLOSE_S = 2.0


@asynccontextmanager
async def serve_over_http(hf: holdfast.AsyncHoldfast) -> AsyncIterator[str]:
    """Serve the embedded queues of `hf` over HTTP until the block ends. Yield the URL."""
    transport = hf._connected()
    assert isinstance(transport, Embedded)
    core, clock, settings, drain = transport.core, SystemClock(), Settings(port=0), Drain()
    telemetry = DoorTelemetry(Metrics(CoreSource(core.store, core.dispatcher, clock)), Tracing())
    sockets = listening_sockets(settings)
    try:
        server = HttpServer(make_door(core, identity_of(settings, clock), drain, telemetry, settings), None)
        await server.start(sockets)
        try:
            yield url_of(sockets, settings)
            drain.begin()
            server.connections.close_after_responses()
        finally:
            await server.close(asyncio.get_running_loop().time() + _CLOSE_S, at_least_s=_CLOSE_S / 4)
    finally:
        for each in sockets:
            each.close()
