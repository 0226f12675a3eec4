"""Tell a database that does not answer from one that takes long.

A stopped machine or a cut network answers nothing, and refuses nothing either. While a statement takes long, a new
connection asks the database for a sign of life. If none comes, every call in progress there ends with an error.
"""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.model.errors import StoreUnavailable


class SilenceWatch:
    """The watch over the statements of one database. It runs on the driver's loop."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        on_silence: Callable[[StoreUnavailable], None],
        *,
        patience_s: float,
    ) -> None:
        """Ask for a sign of life by `probe` once no call has ended for `patience_s`.

        `probe` returns if the database gives a sign of life, and raises `StoreUnavailable` if not. `on_silence` is then
        called with the error.
        """
        self._probe = probe
        self._on_silence = on_silence
        self._patience_s = patience_s
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._probing: asyncio.Task[None] | None = None
        # The number of calls that have ended since the last look. A database that ends calls is not silent.
        self._ended = 0

    def begin(self) -> None:
        """Note that a call has begun."""
        self._running += 1
        if self._timer is None:
            self._ended = 0
            self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._look)

    def end(self) -> None:
        """Note that a call has ended."""
        self._running -= 1
        self._ended += 1

    async def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])

    def _look(self) -> None:
        """Ask for a sign of life if calls are in progress and none has ended for a while."""
        self._timer = None
        if not self._running:
            return
        if self._ended or self._probing is not None:
            self._ended = 0
            self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._look)
            return
        self._probing = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        try:
            await self._probe()
        except StoreUnavailable as error:
            self._on_silence(error)
        finally:
            self._probing = None
            if self._running and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._look)
