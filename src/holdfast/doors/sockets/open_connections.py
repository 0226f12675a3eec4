"""The open connections of a door, and the wait for their end."""

import asyncio
from typing import TypeVar

C = TypeVar("C")


class OpenConnections(set[C]):
    """The open connections of a door."""

    _emptied: asyncio.Future[None] | None = None

    def discard(self, connection: object) -> None:
        """Note that a connection has ended, or was handed over to another protocol."""
        super().discard(connection)
        if not self and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def wait_until_empty(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until no connection is open."""
        if self:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._emptied,), timeout=timeout_s)
