import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop

from holdfast.testing import ManualClock
from tests.doors.connections.connections import Run, within
from tests.doors.serving import Server, Tokens, caller, serve


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Server]:
    """A server without identities, on an empty memory store and a clock that stands still."""
    async with serve(clock) as serving:
        yield serving


@pytest.fixture(params=["memory", "rocks"])
async def stored(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Server]:
    """`server`, over each store."""
    store = "memory://" if request.param == "memory" else str(tmp_path / "data")
    async with serve(clock, store=store, durability="os") as serving:
        yield serving


@pytest.fixture
async def guarded(clock: ManualClock) -> AsyncIterator[Server]:
    """Tokens are asked for: each names its caller."""
    tokens = Tokens(
        {
            "operator": caller("*", "admin", subject="olga"),
            "reading-operator": caller("*", "read", subject="rita"),
            "acme": caller("acme", "admin", subject="ada"),
            "acme-worker": caller("acme", "read", "write", subject="will"),
            "acme-reader": caller("acme", "read", subject="rob"),
            "acme-nobody": caller("acme", "read", "write"),
            "other": caller("other", "admin", subject="otto"),
        }
    )
    async with serve(clock, identity=tokens) as serving:
        yield serving


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """For what must hold on both event loops."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield lambda test: runner.run(within(test))
