"""Waiting by the worker's own clock, and saying once that a server is out of reach."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from holdfast.clock import Clock
from holdfast.model.errors import Throttled
from holdfast.runtime import LoopRuntime

log = logging.getLogger("holdfast.worker")


async def first_of(runtime: LoopRuntime, futures: Iterable["asyncio.Future[Any]"], ms: int | None) -> None:
    """Until one of the futures is done, or so much time has passed. None of them is cancelled."""
    rung = asyncio.get_running_loop().create_future()
    timer = None
    if ms is not None:
        timer = runtime.call_at(runtime.clock.now_ms() + ms, lambda: None if rung.done() else rung.set_result(None))
    try:
        await asyncio.wait({*futures, rung}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        rung.cancel()
        if timer is not None:
            timer.cancel()


class WorkerStop:
    """How far the worker's stopping has come. Its futures are never cancelled, only settled."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[None] = loop.create_future()
        self.hurried: asyncio.Future[None] = loop.create_future()
        # Why the worker stops by itself; None: it was asked to.
        self.error: Exception | None = None

    @property
    def is_asked(self) -> bool:
        return self.asked.done()

    def ask(self, *, now: bool = False) -> None:
        if not self.asked.done():
            self.asked.set_result(None)
        if now and not self.hurried.done():
            self.hurried.set_result(None)

    def fail(self, error: Exception) -> None:
        """Stop with grace because the worker cannot go on; `error` is raised once it has stopped."""
        self.error = self.error or error
        self.ask()


class Reach:
    """Whether the server can be reached: one line when it is lost, one when it is back, none for each try."""

    # Full jitter from the first to the last, in milliseconds: a server that comes back is not met by all at once.
    BASE_MS = 100
    CAP_MS = 10_000

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._lost_at: int | None = None

    def lose(self, error: object) -> None:
        if self._lost_at is None and not isinstance(error, Throttled):  # that is an answer
            self._lost_at = self._clock.now_ms()
            log.warning("%s cannot be reached, trying until it can: %s", self._name, error)

    def regain(self) -> None:
        if self._lost_at is not None:
            away_ms, self._lost_at = self._clock.now_ms() - self._lost_at, None
            log.info("%s is back after %.1f s", self._name, away_ms / 1_000)


# A crash at once is tried again at once, three times; then these.
RESTARTS_AT_ONCE = 3
RESTART_BASE_MS = 250
RESTART_CAP_MS = 300_000
# Having run for so long, it is as if it had never crashed.
HEALTHY_MS = 60_000


def restart_delay_ms(crashes: int) -> int:
    """How long to wait after so many crashes in a row."""
    doublings = crashes - RESTARTS_AT_ONCE - 1
    return 0 if doublings < 0 else min(RESTART_BASE_MS << min(doublings, 32), RESTART_CAP_MS)
