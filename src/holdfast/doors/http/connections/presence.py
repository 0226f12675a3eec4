"""Waiting on behalf of a caller that may leave at any moment."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.doors.http.calls import CallerLeft, HttpCall

T = TypeVar("T")


class Presence:
    """Watches one caller: from its first use until it is closed, its leaving ends whatever it waits for."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._leaving: asyncio.Future[Any] | None = None

    async def wait(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> T:
        """The work's result; `CallerLeft` if the caller leaves first. `undo` is given a result that nobody will see."""
        if self._leaving is None:
            self._leaving = self._call.leaving()
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait((working, self._leaving), return_when=asyncio.FIRST_COMPLETED)
            if self._leaving.done():
                raise CallerLeft
            return await working
        except BaseException:
            await _abandon(working, undo)
            raise

    def close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()


async def _abandon(working: asyncio.Future[T], undo: Callable[[T], None]) -> None:
    """Work cut off while it waits undoes itself; what was done by then must be undone here."""
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait((working,))
    if not working.cancelled() and working.exception() is None:
        undo(working.result())
