"""Calls on another thread, and what settles or fails them."""

import threading
from collections.abc import Callable
from typing import Any

from holdfast.runtime import Ticket

# Long enough for any machine; only a failure waits for it.
PATIENCE_S = 30.0


class Boom(Exception):
    pass


async def settle(ticket: Ticket[Any], value: object) -> None:
    ticket.set_result(value)


class OtherThread:
    """A call on another thread, with its result or error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def is_running(self) -> bool:
        """Still running after enough time for one that need not wait."""
        self._thread.join(0.02)
        return self._thread.is_alive()

    def join(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the call did not return"
        if self.error is not None:
            raise self.error
        return self.result
