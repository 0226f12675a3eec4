"""Keep background loops alive through errors, and let them wait on the injected clock.

A loop that ends with its first error stops working until the process is restarted, without any sign of it. Every loop
therefore has a `Backoff`: it logs the first error of an episode, pauses longer after each further one, and logs the end
of the episode.

Loops on an asyncio loop use `run_forever`, and wait by `sleep_for` and `wait_for_event`. Loops driven by timers of the
runtime set their next timer by the pause that `Backoff.failed` returns.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.clock import Alarm, Clock, seconds_until
from holdfast.model.errors import HoldfastError

_log = logging.getLogger("holdfast")

FIRST_MS = 100
# Short enough that work resumes soon after an outage, long enough that retries cost nothing during one.
LONGEST_MS = 5_000


class Backoff:
    """The failures of one background loop. An episode lasts from its first failure to its next success."""

    def __init__(self, loop: str, *, first_ms: int = FIRST_MS, longest_ms: int = LONGEST_MS, **fields: object) -> None:
        """Start without a failure. `loop` is the loop's name in the log; `fields` are added to each of its log lines.
        The pauses double from `first_ms` to `longest_ms`."""
        self._fields = {"loop": loop, **{name: str(value) for name, value in fields.items()}}
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._failures = 0

    def failed(self, error: Exception, **fields: object) -> int:
        """Count a failure, and return how many milliseconds to pause before the next attempt.

        The first failure of an episode is logged as a warning, later ones at level DEBUG. An error outside the
        `HoldfastError` tree is unexpected: it is logged with its traceback. `fields` are added to this log line.
        """
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
        # The text repeats the loop and the error, because a log format chosen by the program may not show extra fields.
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
        """End the current episode, if there is one, and log that."""
        if self._failures:
            _log.info(
                "background_recovered loop=%s", self._fields["loop"], extra={**self._fields, "failures": self._failures}
            )
            self._failures = 0


async def sleep_for(clock: Clock, ms: int) -> None:
    """Sleep until `ms` milliseconds have passed on the clock. Other tasks run even if `ms` is 0."""
    await wait_for_event(clock, asyncio.Event(), ms)


async def wait_for_event(clock: Clock, event: asyncio.Event, ms: int) -> bool:
    """Wait until the event is set, or until `ms` milliseconds have passed on the clock.

    A clock that a test moves by hand (an `Alarm`) ends the wait when it is moved past that time. Other tasks run even
    if `ms` is 0.

    Returns:
        Whether the event is set.
    """
    if ms <= 0:
        await asyncio.sleep(0)
        return event.is_set()
    at_ms = clock.now_ms() + ms
    if isinstance(clock, Alarm):
        await _wait_for_alarm(clock, event, at_ms)
        return event.is_set()
    while not event.is_set() and clock.now_ms() < at_ms:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_until(at_ms, clock)):
                await event.wait()
    return event.is_set()


async def _wait_for_alarm(alarm: Alarm, event: asyncio.Event, at_ms: int) -> None:
    loop = asyncio.get_running_loop()
    is_over = False
    with suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:

            def end_wait() -> None:
                if not is_over:  # the timeout cannot be changed once the wait has ended
                    limit.reschedule(loop.time())

            def ring() -> None:
                loop.call_soon_threadsafe(end_wait)  # another thread may move the clock

            timer = alarm.call_at(at_ms, ring)
            try:
                await event.wait()
            finally:
                is_over = True
                timer.cancel()


async def run_forever(
    once: Callable[[], Awaitable[object]], backoff: Backoff, clock: Clock, wait: Callable[[], Awaitable[object]]
) -> None:
    """Call `once` after each `wait`, until cancelled.

    After a failure, the pause that `backoff` returns replaces the wait. It passes on the clock.
    """
    pause_ms: int | None = None
    while True:
        try:
            if pause_ms is None:
                await wait()
            else:
                await sleep_for(clock, pause_ms)
            await once()
        except Exception as error:
            pause_ms = backoff.failed(error)
        else:
            pause_ms = None
            backoff.succeeded()
