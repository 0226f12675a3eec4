"""A core inside the caller's program: stepped in the calling threads, or on the caller's event loop."""

from collections.abc import Mapping
from typing import Any, NoReturn

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.transport import Transport
from holdfast.clock import Alarm, Clock, SystemClock
from holdfast.dice import Dice, SystemDice
from holdfast.forking import forked_error, listen_for_forks
from holdfast.runtime import LoopRuntime, ThreadRuntime
from holdfast.server.compose import Core, make_store
from holdfast.server.settings import parse_settings
from holdfast.stores.contract import Store


class Embedded:
    """The transport with nothing in between: the services themselves."""

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
    """`store` replaces the one the URL names: for tests that bring their own."""
    parsed = parse_settings(settings)
    clock = clock or SystemClock()
    core_store = store or make_store(url, parsed, dice or SystemDice())
    runtime = ThreadRuntime(clock, _alarm_of(clock))

    async def connect() -> Transport:
        core = Core(core_store, runtime, parsed)
        await core.open()
        return Embedded(core, runtime)

    return Holdfast(AsyncHoldfast(connect), BlockingDriver(runtime.run, runtime.close, lambda: runtime.is_refusing))


def open_on_loop(
    url: str,
    settings: Mapping[str, Any],
    *,
    clock: Clock | None = None,
    dice: Dice | None = None,
    store: Store | None = None,
) -> AsyncHoldfast:
    parsed = parse_settings(settings)
    clock = clock or SystemClock()
    core_store = store or make_store(url, parsed, dice or SystemDice())

    async def connect() -> Transport:
        runtime = LoopRuntime(clock, _alarm_of(clock))
        core = Core(core_store, runtime, parsed)
        await core.open()
        return Embedded(core, runtime)

    return AsyncHoldfast(connect)


def _refuse_calls(service: object, error: Exception) -> None:
    """Let every call of this one object raise the error.

    Queues and messages hold the object itself. To shadow its methods costs nothing in the process that opened it, where
    a check in each of them would cost something for every call.
    """

    def refuse(*given: object, **named: object) -> NoReturn:
        raise error.with_traceback(None)

    for name in dir(type(service)):
        if not name.startswith("_") and callable(getattr(type(service), name)):
            setattr(service, name, refuse)


def _alarm_of(clock: Clock) -> Alarm | None:
    """A clock that is moved by hand rings its own alarms."""
    return clock if isinstance(clock, Alarm) else None
