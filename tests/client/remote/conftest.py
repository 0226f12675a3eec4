"""A server on the test's loop, over HTTP and over frames, and a client of it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.testing import ManualClock
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import Server, serve


@pytest.fixture(params=[serve, serve_framed])
def serving(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def server(clock: ManualClock, serving: Any) -> AsyncIterator[Server]:
    async with serving(clock) as opened:
        yield opened


@pytest.fixture
async def hf(server: Server) -> AsyncIterator[AsyncHoldfast]:
    async with holdfast.open_async(server.url) as opened:
        yield opened
