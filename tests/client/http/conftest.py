"""A server on a loop of the test's own, and clients of it: one beside it, one whose way there can be broken."""

from collections.abc import AsyncIterator

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.testing import ManualClock
from holdfast.testing.proxy import FaultProxy
from tests.doors.serving import Server, serve


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Server]:
    async with serve(clock) as serving:
        yield serving


@pytest.fixture
async def hf(server: Server) -> AsyncIterator[AsyncHoldfast]:
    async with holdfast.open_async(server.url) as opened:
        yield opened


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.url) as opened:
        yield opened


@pytest.fixture
async def far(proxy: FaultProxy) -> AsyncIterator[AsyncHoldfast]:
    """A client whose way to the server the test can break."""
    async with holdfast.open_async(proxy.url) as opened:
        yield opened
