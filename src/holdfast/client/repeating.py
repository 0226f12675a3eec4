"""A call to a server is tried again where that is safe, over whichever wire; and what outlives its caller."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from holdfast.client.http.connection import Lost
from holdfast.client.http.tries import Failure, Standing, Tries
from holdfast.model.errors import HoldfastError, StoreUnavailable

_log = logging.getLogger("holdfast")

# Between two rounds of a call that goes on for ever.
_ROUND_MS = 5_000

T = TypeVar("T")


async def repeat(
    standing: Standing,
    tries: Tries,
    attempt: Callable[[], Awaitable[T]],
    failure_in: Callable[[T], Failure | None],
    *,
    is_last: bool = False,
) -> T:
    """The first answer in which there is no failure. `is_last`: tried by a client that is closing, too."""
    while True:
        if not is_last:
            standing.check_open()
        failure: Failure | None
        try:
            answer = await attempt()
        except Lost as lost:
            failure = tries.lost(lost)
        else:
            failure = failure_in(answer)
            if failure is None:
                return answer
        if standing.is_closed and not is_last:
            continue
        if failure.pause_ms is None:
            raise failure.error
        if failure.pause_ms:
            await asyncio.sleep(failure.pause_ms / 1_000)


async def repeat_for_ever(standing: Standing, call: Callable[[], Awaitable[T]]) -> T:
    """For those who wait for ever: a server that is gone may come back."""
    rounds = 0
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            if not standing.was_answered or not standing.retries or standing.is_closed:
                raise
            _log.warning("still trying: %s", error.message)
        await asyncio.sleep(standing.pause_ms(rounds, _ROUND_MS) / 1_000)
        rounds += 1


class Background:
    """Work that no caller's leaving ends; closing waits for it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, HoldfastError):
                _log.warning("what a caller left behind could not be given back: %s", error.message)
            else:
                _log.error("background work failed", exc_info=error)
