"""The laws hold through Cap'n Proto RPC: the public API over it, a real door behind it, on the test's clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock, Subject
from holdfast.testing.laws import StoreLaws
from holdfast.testing.subject import fire_due
from tests.doors.capnp_serving import CapnpServer, serve_capnp

WEEK_MS = 7 * 86_400_000


class CapnpSubject:
    """A memory store behind the door, asked by the client: see the laws over HTTP."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._dice = SeededDice(0)
        self._server: CapnpServer | None = None

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[AsyncHoldfast]:
        async with serve_capnp(self.clock, store=MemoryStore(self._dice, WEEK_MS), **settings) as server:
            self._server = server
            async with holdfast.open_async(server.url, retries=0, wait_round=None) as hf:
                yield hf

    async def sweep(self, hf: AsyncHoldfast) -> int:
        assert self._server is not None
        total = 0
        while changed := await self._server.core.sweeper.sweep_once():
            total += changed
        return total

    async def fire(self, hf: AsyncHoldfast) -> None:
        assert self._server is not None
        await fire_due(self._server.core)


@pytest.mark.slow
class TestCapnp(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return CapnpSubject()
