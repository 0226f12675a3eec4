"""Signal handlers of an event loop that can be undone."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any


class LoopSignals:
    """Signal handlers on an event loop; `restore` brings back the handlers they replaced.

    asyncio itself removes a handler by installing the system's default. A program that ignores SIGINT, as everything
    started with `nohup … &` does, or that has a handler of its own, would lose that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._replaced: dict[signal.Signals, Any] = {}

    def handle(self, which: signal.Signals, callback: Callable[..., object], *args: object) -> None:
        """Call `callback` for the signal. Raises as `add_signal_handler` does, outside the main thread for one."""
        previous = signal.getsignal(which)
        self._loop.add_signal_handler(which, callback, *args)
        self._replaced.setdefault(which, previous)

    def restore(self) -> None:
        """Bring back the handlers that were there before the first `handle`."""
        while self._replaced:
            which, previous = self._replaced.popitem()
            self._loop.remove_signal_handler(which)
            if previous is not None:  # None: installed outside of Python, which cannot install it again
                signal.signal(which, previous)
