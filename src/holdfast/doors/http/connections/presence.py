"""Wait on behalf of a caller that may leave at any moment."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.doors.http.calls import HttpCall
from holdfast.doors.http.request_bodies import CallerLeft

T = TypeVar("T")


class Presence:
    """The watch over one caller. It lasts from the first `wait` to `close`; if the caller leaves, it ends the work."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._leaving: asyncio.Future[Any] | None = None

    async def wait(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> T:
        """Return the result of `work`.

        If the caller leaves first, cancel the work and raise `CallerLeft`. If the work has finished by then, or this
        wait is cancelled, its result goes to `undo`.
        """
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
        """Stop watching the caller."""
        if self._leaving is not None:
            self._leaving.cancel()


async def _abandon(working: asyncio.Future[T], undo: Callable[[T], None]) -> None:
    """Cancel work. Work that is cancelled while it waits undoes itself; the result of finished work goes to `undo`."""
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait((working,))
    if not working.cancelled() and working.exception() is None:
        undo(working.result())
