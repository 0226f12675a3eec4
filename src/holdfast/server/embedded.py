"""A core inside the caller's program: stepped in the calling threads, or on the caller's event loop."""

from collections.abc import Mapping
from typing import Any

from holdfast.client.blocking import Driver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.transport import Transport
from holdfast.clock import Alarm, Clock, SystemClock
from holdfast.dice import Dice, SystemDice
from holdfast.runtime import LoopRuntime, ThreadRuntime
from holdfast.server.compose import Core, make_store
from holdfast.server.settings import parse_settings
from holdfast.stores.contract import Store


class Embedded:
    """The transport with nothing in between: the services themselves."""

    def __init__(self, core: Core, runtime: LoopRuntime | None = None) -> None:
        self.core = core
        self.messages = core.messages
        self.admin = core.admin
        self._runtime = runtime

    async def close(self) -> None:
        await self.core.close()
        if self._runtime is not None:
            await self._runtime.aclose()


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
        return Embedded(core)

    return Holdfast(AsyncHoldfast(connect), Driver(runtime.run, runtime.close))


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


def _alarm_of(clock: Clock) -> Alarm | None:
    """A clock that is moved by hand rings its own alarms."""
    return clock if isinstance(clock, Alarm) else None
