"""A core inside the caller's program. It runs in the calling threads, or on the caller's event loop."""

from collections.abc import Mapping
from typing import Any, NoReturn

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.transport import Transport
from holdfast.clock import Alarm, Clock, SystemClock
from holdfast.dice import Dice, SystemDice
from holdfast.forking import forked_error, listen_for_forks
from holdfast.model.parsing.store_url import without_secrets
from holdfast.runtime import LoopRuntime, ThreadRuntime
from holdfast.server.compose import Core, make_store
from holdfast.server.settings import parse_settings
from holdfast.stores.contract import Store


class Embedded:
    """A transport that calls the services directly."""

    def __init__(self, core: Core, runtime: LoopRuntime | ThreadRuntime) -> None:
        self.core = core
        self.messages = core.messages
        self.call = core.services.call
        self._runtime = runtime
        self._is_inherited = False
        listen_for_forks(self)

    async def close(self) -> None:
        if self._is_inherited:
            return  # the parent closes it
        await self.core.close()
        if isinstance(self._runtime, LoopRuntime):
            await self._runtime.aclose()

    def forked(self) -> None:
        self._is_inherited = True
        error = forked_error("this store")
        if isinstance(self._runtime, ThreadRuntime):
            self._runtime.refuse(error)
        for service in self.core.services.every:
            _refuse_calls(service, error)


def open_blocking(
    url: str,
    settings: Mapping[str, Any],
    *,
    clock: Clock | None = None,
    dice: Dice | None = None,
    store: Store | None = None,
) -> Holdfast:
    """Return a blocking client of an embedded store.

    `clock`, `dice` and `store` replace the system's clock, its random numbers and the store of the URL, for tests.
    Raise `InvalidArgument` for a URL or a setting that is not accepted.
    """
    parsed = parse_settings(settings)
    clock = clock or SystemClock()
    core_store = store or make_store(url, parsed, dice or SystemDice())
    runtime = ThreadRuntime(clock, _alarm_of(clock))

    async def connect() -> Transport:
        core = Core(core_store, runtime, parsed)
        await core.open()
        return Embedded(core, runtime)

    inner = AsyncHoldfast(connect, without_secrets(url))
    return Holdfast(inner, BlockingDriver(runtime.run, runtime.close, lambda: runtime.is_refusing))


def open_on_loop(
    url: str,
    settings: Mapping[str, Any],
    *,
    clock: Clock | None = None,
    dice: Dice | None = None,
    store: Store | None = None,
) -> AsyncHoldfast:
    """Return a client of an embedded store for the running event loop; see `open_blocking`."""
    parsed = parse_settings(settings)
    clock = clock or SystemClock()
    core_store = store or make_store(url, parsed, dice or SystemDice())

    async def connect() -> Transport:
        runtime = LoopRuntime(clock, _alarm_of(clock))
        core = Core(core_store, runtime, parsed)
        await core.open()
        return Embedded(core, runtime)

    return AsyncHoldfast(connect, without_secrets(url))


def _refuse_calls(service: object, error: Exception) -> None:
    """Make every call of this object raise the error.

    Queues and messages hold a reference to the object. Replacing its methods costs nothing in the process that opened
    it; a check in each method would cost something in every call.
    """

    def refuse(*given: object, **named: object) -> NoReturn:
        raise error.with_traceback(None)

    for name in dir(type(service)):
        if not name.startswith("_") and callable(getattr(type(service), name)):
            setattr(service, name, refuse)


def _alarm_of(clock: Clock) -> Alarm | None:
    """Return the alarms of a clock that a test moves by hand; None for any other clock."""
    return clock if isinstance(clock, Alarm) else None
