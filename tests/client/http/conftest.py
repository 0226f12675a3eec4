"""A server on the test's loop, and a client of it."""

from collections.abc import AsyncIterator

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.testing import ManualClock
from tests.doors.serving import Server, serve


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Server]:
    async with serve(clock) as serving:
        yield serving


@pytest.fixture
async def hf(server: Server) -> AsyncIterator[AsyncHoldfast]:
    async with holdfast.open_async(server.url) as opened:
        yield opened
