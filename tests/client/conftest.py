"""Queues that take large payloads: over HTTP and frames, and embedded, for callers on a loop and those that block."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.server.embedded import Embedded, open_blocking, open_on_loop
from holdfast.testing import ManualClock
from holdfast.testing.proxy import FaultProxy
from tests.client.large import PATIENCE_S, SETTINGS, Place, served
from tests.doors.serving import Server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["http", "framed"])
async def server(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Server]:
    async with served(clock, tmp_path, request.param) as serving:
        yield serving


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy: FaultProxy) -> AsyncIterator[AsyncHoldfast]:
    """A client whose way to the server the test can break."""
    async with holdfast.open_async(proxy.url) as hf:
        yield hf


@pytest.fixture(params=["http", "framed", "embedded"])
async def place(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "embedded":
        async with open_on_loop(str(tmp_path / "data"), SETTINGS, clock=clock) as opened_here:
            yield Place(opened_here, cast(Embedded, opened_here._transport).core)
        return
    async with served(clock, tmp_path, request.param) as serving, holdfast.open_async(serving.url) as opened_there:
        yield Place(opened_there, serving.core)


@pytest.fixture
def hf(place: Place) -> AsyncHoldfast:
    return place.hf


@pytest.fixture(params=["http", "framed", "embedded"])
def blocking(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path, served_in_thread: Any
) -> Iterator[holdfast.Holdfast]:
    if request.param == "embedded":
        with open_blocking(str(tmp_path / "data"), SETTINGS, clock=clock) as opened_here:
            yield opened_here
        return
    with holdfast.open(served_in_thread(clock, tmp_path, request.param)) as opened_there:
        yield opened_there


@pytest.fixture
def served_in_thread() -> Iterator[Any]:
    """A server on a separate loop, for callers that block their own."""
    runner = asyncio.Runner()
    loop, contexts = runner.get_loop(), []
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def on_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    def start(clock: ManualClock, directory: Path, door: str = "http") -> str:
        context = served(clock, directory, door)
        server: Server = on_loop(context.__aenter__())
        contexts.append(context)
        return server.url

    yield start
    for context in contexts:
        on_loop(context.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    runner.close()
