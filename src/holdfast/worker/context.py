"""The state that all consumers of a running worker share: its hooks, its stop, and the server's reachability."""

import asyncio
import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from holdfast.client.blocking import BlockingDriver
from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.model.errors import InvalidArgument, Throttled
from holdfast.runtime import LoopRuntime
from holdfast.worker.connection import WorkerConnection

log = logging.getLogger("holdfast.worker")


async def first_of(runtime: LoopRuntime, futures: Iterable["asyncio.Future[Any]"], ms: int | None) -> None:
    """Wait until one of the futures is done, at most `ms` milliseconds. None of them is cancelled."""
    timed_out = asyncio.get_running_loop().create_future()
    timer = None
    if ms is not None:
        timer = runtime.call_at(
            runtime.clock.now_ms() + ms, lambda: None if timed_out.done() else timed_out.set_result(None)
        )
    try:
        await asyncio.wait({*futures, timed_out}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timed_out.cancel()
        if timer is not None:
            timer.cancel()


class WorkerStop:
    """The state of a worker's stop. Its futures are never cancelled, only completed."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.requested: asyncio.Future[None] = loop.create_future()
        self.hurried: asyncio.Future[None] = loop.create_future()
        # The error for which the worker stops by itself; None if the program or a signal stops it.
        self.error: Exception | None = None

    @property
    def is_requested(self) -> bool:
        """Return whether the worker has been told to stop."""
        return self.requested.done()

    def request(self, *, now: bool = False) -> None:
        """Tell the worker to stop; with `now`, without waiting for handlers to finish."""
        if not self.requested.done():
            self.requested.set_result(None)
        if now and not self.hurried.done():
            self.hurried.set_result(None)

    def fail(self, error: Exception) -> None:
        """Stop with grace because the worker cannot continue. `error` is raised once it has stopped."""
        self.error = self.error or error
        self.request()


class Reachability:
    """The server's reachability. It is logged once when the server is lost and once when it is back."""

    # The bounds of retry delays. They have full jitter, so that a server that comes back is not called by all at once.
    BASE_MS = 100
    CAP_MS = 10_000

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._lost_at: int | None = None

    def lose(self, error: object) -> None:
        """Note a failed call. A throttled call does not count, because the server has responded."""
        if self._lost_at is None and not isinstance(error, Throttled):
            self._lost_at = self._clock.now_ms()
            log.warning("server_unreachable server=%s error=%s: retrying until it is back", self._name, error)

    def regain(self) -> None:
        """Note a successful call."""
        if self._lost_at is not None:
            away_ms, self._lost_at = self._clock.now_ms() - self._lost_at, None
            log.info("server_reachable server=%s after_s=%.1f", self._name, away_ms / 1_000)


# A consumer that crashes restarts at once this many times in a row. After that the delay doubles between these bounds.
RESTARTS_AT_ONCE = 3
RESTART_BASE_MS = 250
RESTART_CAP_MS = 300_000
# A consumer that has run for this long starts with a fresh count of crashes.
HEALTHY_MS = 60_000


def restart_delay_ms(crashes: int) -> int:
    """Return the delay before the restart after this many crashes in a row."""
    doublings = crashes - RESTARTS_AT_ONCE - 1
    return 0 if doublings < 0 else min(RESTART_BASE_MS << min(doublings, 32), RESTART_CAP_MS)


Hook = Callable[..., Any]


class Hooks:
    """The functions that a program has registered for events of a worker."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = defaultdict(list)

    def add(self, name: str, hook: Hook) -> Hook:
        """Register a function for the event `name`. Raise `InvalidArgument` if it is not callable."""
        if not callable(hook):
            raise InvalidArgument(f"the hook is not a function; write @worker.{name} above a def", field=name)
        self._hooks[name].append(hook)
        return hook

    def with_last(self, name: str, hook: Hook) -> "Hooks":
        """Return a copy with one more hook at the end."""
        more = Hooks()
        more._hooks.update({each: list(hooks) for each, hooks in self._hooks.items()})
        more.add(name, hook)
        return more

    async def call(self, name: str, *args: Any) -> None:
        """Call the hooks of an event in the order of registration, and raise what they raise."""
        for hook in self._hooks.get(name, ()):
            if inspect.isawaitable(awaitable := hook(*args)):
                await awaitable

    async def notify(self, name: str, *args: Any) -> None:
        """Call the hooks of an event that has already happened. Their errors are only logged."""
        try:
            await self.call(name, *args)
        except Exception:
            log.exception("hook_failed hook=%s", name)


class ConsumerContext(NamedTuple):
    """The objects that all consumers of a running worker share."""

    owner: str
    connection: WorkerConnection
    runtime: LoopRuntime
    dice: Dice
    hooks: Hooks
    reachability: Reachability
    stop: WorkerStop
    # Set by tests: the driver of messages for plain functions, which are then called inline instead of in threads.
    inline: BlockingDriver | None = None
