"""Signal handlers of an event loop that can be removed again."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any


class LoopSignals:
    """Signal handlers on an event loop, and the handlers that they replaced.

    When asyncio removes a handler, it installs the system's default. A program that ignores SIGINT, such as one started
    with `nohup … &`, or one with its own handler, would lose its setting.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._replaced: dict[signal.Signals, Any] = {}

    def handle(self, which: signal.Signals, callback: Callable[..., object], *args: object) -> None:
        """Call `callback` for the signal.

        Raise the errors of `loop.add_signal_handler`, such as `ValueError` outside the main thread.
        """
        previous = signal.getsignal(which)
        self._loop.add_signal_handler(which, callback, *args)
        self._replaced.setdefault(which, previous)

    def restore(self) -> None:
        """Install the handlers again that were in place before the first `handle`."""
        while self._replaced:
            which, previous = self._replaced.popitem()
            self._loop.remove_signal_handler(which)
            if previous is not None:  # a handler that was not installed from Python cannot be installed again
                signal.signal(which, previous)
