"""The end of a server: its signals, and the time limit of its drain."""

import asyncio
import logging
import os
import signal
import sys
import threading

from holdfast.signals import LoopSignals

_log = logging.getLogger("holdfast")

OVERTIME = 1


class ServerStop:
    """Signals that stop a server: the first begins the drain, the second ends the process."""

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._signals = LoopSignals(loop)
        self._asked = asyncio.Event()
        self.has_lost_store = False
        for each in self._SIGNALS:
            self._signals.handle(each, self._ask)

    async def wait(self) -> None:
        """Wait for the first signal, or for the loss of the store."""
        await self._asked.wait()

    def store_lost(self, why: str) -> None:
        """Stop the server, because this process can no longer open the store. Another process can."""
        _log.critical("server_exits", extra={"cause": why, "exit_code": OVERTIME})
        self.has_lost_store = True
        self._asked.set()

    def forget(self) -> None:
        """Install the signal handlers again that were in place before."""
        self._signals.restore()

    def _ask(self) -> None:
        self._asked.set()
        for each in self._SIGNALS:
            self._signals.handle(each, leave, 128 + each)


class Watchdog:
    """A timer that ends a process that does not end by itself, even if its event loop is blocked."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self, after_s: float) -> None:
        """End the process after this time, unless the timer is dismissed before."""
        self._timer = threading.Timer(after_s, self._end_process)
        self._timer.daemon = True
        self._timer.start()

    def dismiss(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _end_process(self) -> None:
        _log.error("shutdown_timed_out: the store did not close in time; every acknowledged change is safe")
        leave(OVERTIME)


def leave(code: int) -> None:
    """End the process at once."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
