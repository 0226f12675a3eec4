"""Keep background loops alive through errors.

A loop that ends with its first error stops working until somebody restarts the process, and nobody is told. Every loop
therefore has a `Backoff`: it logs the first error of an episode, pauses longer after each further one, and logs the end
of the episode. Loops on an asyncio loop use `run_forever`; loops driven by timers of the runtime set their next timer
by the pause that `Backoff.failed` returns.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.model.errors import HoldfastError

_log = logging.getLogger("holdfast")

FIRST_MS = 100
# Short enough that work resumes soon after an outage, long enough that retries cost nothing during one.
LONGEST_MS = 5_000


class Backoff:
    """The failures of one background loop. An episode lasts from the first failure to the next success."""

    def __init__(self, loop: str, *, first_ms: int = FIRST_MS, longest_ms: int = LONGEST_MS, **fields: object) -> None:
        """`loop` is the loop's name in the log, `fields` are added to each of its lines."""
        self._fields = {"loop": loop, **{name: str(value) for name, value in fields.items()}}
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._failures = 0

    def failed(self, error: Exception, **fields: object) -> int:
        """Return how many milliseconds to pause. Logs the first failure of an episode, with its traceback if the error
        is none that a store is expected to raise."""
        pause_ms = min(self._first_ms << min(self._failures, 32), self._longest_ms)
        level = logging.DEBUG if self._failures else logging.WARNING
        self._failures += 1
        facts = {
            **self._fields,
            **{name: str(value) for name, value in fields.items()},
            "error": str(error) or type(error).__name__,
            "error_type": type(error).__name__,
            "pause_ms": pause_ms,
        }
        # In the text as well: a program's own logging shows no extra fields.
        _log.log(
            level,
            "background_failed loop=%s error=%s",
            facts["loop"],
            facts["error"],
            exc_info=None if isinstance(error, HoldfastError) else error,
            extra=facts,
        )
        return pause_ms

    def succeeded(self) -> None:
        """End the episode, if there is one."""
        if self._failures:
            _log.info(
                "background_recovered loop=%s", self._fields["loop"], extra={**self._fields, "failures": self._failures}
            )
            self._failures = 0


async def run_forever(
    once: Callable[[], Awaitable[object]], backoff: Backoff, wait: Callable[[], Awaitable[object]]
) -> None:
    """Call `once` after each `wait`, until cancelled. After a failure the pause of `backoff` replaces the wait."""
    pause_ms: int | None = None
    while True:
        try:
            if pause_ms is None:
                await wait()
            else:
                await asyncio.sleep(pause_ms / 1_000)
            await once()
        except Exception as error:
            pause_ms = backoff.failed(error)
        else:
            pause_ms = None
            backoff.succeeded()
