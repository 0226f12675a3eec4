"""A handler that takes its time."""

import asyncio
from typing import Any


class Slow:
    """An async handler that works until it is released."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.at_work = 0
        self.most = 0
        self.done: list[Any] = []
        self.cancelled: list[Any] = []

    async def __call__(self, number: int) -> None:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await self.let_go.wait()
        except asyncio.CancelledError as error:
            self.cancelled.append(error.args[0])
            raise
        finally:
            self.at_work -= 1
        self.done.append(number)
