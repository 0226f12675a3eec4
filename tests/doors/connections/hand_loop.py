"""An event loop's clock and call list, moved by hand."""

import asyncio
from collections.abc import Callable
from typing import Any, cast


class HandLoop:
    """Calls nothing by itself, so that a test sees what happens between two rounds."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._soon: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._soon.append(lambda: callback(*args))

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def run_round(self) -> bool:
        """Call what waits; return whether there was anything."""
        soon, self._soon = self._soon, []
        for each in soon:
            each()
        return bool(soon)

    def run(self) -> None:
        while self.run_round():
            pass
