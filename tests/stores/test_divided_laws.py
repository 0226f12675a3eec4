"""The laws hold through a door process in front of several store processes: over HTTP, with their links behind it."""

import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.testing import ManualClock, Subject
from holdfast.testing.faults import with_unwritable_verdicts
from holdfast.testing.laws import StoreLaws
from holdfast.testing.subject import fire_due
from tests.doors.serving import serve_backend
from tests.server.store_processes.divided import Divided, backend_of, divided


class DividedSubject:
    """A store of four shards in two processes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._server: Divided | None = None

    @asynccontextmanager
    async def open(self, *, unwritable: Collection[int] | None = None, **settings: Any) -> AsyncIterator[AsyncHoldfast]:
        wrap = None if unwritable is None else partial(with_unwritable_verdicts, unwritable=unwritable)
        with tempfile.TemporaryDirectory() as directory:
            async with divided(Path(directory) / "store", self.clock, wrap=wrap, durability="os", **settings) as server:
                self._server = server
                async with (
                    serve_backend(backend_of(server), server.settings) as url,
                    holdfast.open_async(url, retries=0, wait_round=None) as hf,
                ):
                    yield hf

    async def sweep(self, hf: AsyncHoldfast) -> int:
        assert self._server is not None
        total = 0
        for core in self._server.cores.values():
            while changed := await core.sweeper.sweep_once():
                total += changed
        return total

    async def fire(self, hf: AsyncHoldfast) -> None:
        assert self._server is not None
        for core in self._server.cores.values():
            await fire_due(core)


@pytest.mark.slow
class TestDivided(StoreLaws):
    @pytest.fixture
    def subject(self) -> Subject:
        return DividedSubject()

    async def test_ids_increase_strictly_even_when_the_clock_steps_back(self, subject: Subject) -> None:
        """Each store process is a node of its own (`model/ids.py`), so this is true of the ids of one queue."""
        async with subject.open() as hf:
            for q in (hf.queue("q"), hf.queue("other", tenant="acme")):
                ids = await q.enqueue([b""] * 5_000)
                subject.clock.step_to(subject.clock.now_ms() - 60_000)
                ids += await q.enqueue([b""] * 3)
                subject.clock.step_to(subject.clock.now_ms() + 3_600_000)
                ids += await q.enqueue([b""] * 3)
                snowflakes = [id.snowflake for id in ids]
                assert snowflakes == sorted(set(snowflakes))
