"""When the callers of a connection stop waiting for an answer.

One timer for all calls, at the first of their limits: most calls have the same, so it is hardly ever set anew.
"""

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.client.framed.call import LoopOpenCall
    from holdfast.client.framed.connection import FramedClientConnection

# A loop may ring a timer this much too early.
_EARLY_S: Final = 0.001


class TimeLimits:
    def __init__(self, connection: "FramedClientConnection") -> None:
        self._connection = connection
        self._loop = connection.loop
        self._at = inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, call: "LoopOpenCall", limit_s: float) -> None:
        """Let the caller that waits now wait no longer than this."""
        now = call.sent_at = self._loop.time()
        call.deadline = now + limit_s
        if call.deadline < self._at:
            self._set(call.deadline)

    def end(self) -> None:
        self._set(inf)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = None if at == inf else self._loop.call_at(at, self._check)

    def _check(self) -> None:
        connection, now = self._connection, self._loop.time() + _EARLY_S
        due = [call for call in connection.calls if call.deadline <= now]
        for call in due:
            call.deadline = inf
            call.time_out()
        if due and all(connection.heard_at < call.sent_at for call in due):
            # Not a word since they were sent: a fresh connection may find another server.
            connection.close("the server does not answer")
        else:
            self._set(min((call.deadline for call in connection.calls), default=inf))
