"""The way to a store through a disk that is slow, fails, and is gone in the middle of a call."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.dice import Dice
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime
from holdfast.stores.contract import Listener, Store
from holdfast.stores.values import Capabilities
from holdfast.testing.wrapped_calls import Method, wrap_attribute
from tests.machinery.simulation.loop import SeededLoop

# Calls that change nothing: they fail with the store, but make it fail never.
_READS = frozenset(
    {
        *("directory.find_tenant", "directory.find_queue", "directory.list_tenants", "directory.list_queues"),
        "directory.list_limited",
        *("schedules.find", "schedules.page", "schedules.due", "ledgers.entries", "payloads.read"),
        *("get", "peek", "browse", "counts", "journal", "take_tallies", "figures"),
    }
)
_TAKE_ROOM = frozenset({"enqueue", "schedules.fire"})
# These say themselves what of them is synced.
_UNSYNCED = frozenset({"claim", "settle"})
_FULL = "the disk is full"


class DiskRates(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities, for each call, that the disk is slow, full or fails; and the longest delay."""

    slow: float = 0.0
    slow_ms: int = 0
    fails: float = 0.0
    is_full: float = 0.0


class SimulatedDisk:
    """A store as one process sees it. Each call has its whole effect in one step, at some moment between its beginning
    and its end; a process that dies in between does not know whether its call took effect."""

    def __init__(
        self,
        store: Store,
        loop: SeededLoop,
        dice: Dice,
        rates: DiskRates,
        *,
        claims_inline: bool,
        seen: Counter[str],
        sync: Callable[[], None],
        on_effect: Callable[[str], None],
        on_stop: Callable[[], None],
    ) -> None:
        self.capabilities: Capabilities = msgspec.structs.replace(store.capabilities, claims_inline=claims_inline)
        self.rates = rates
        self.shard_of = store.shard_of
        self._store = store
        self._loop = loop
        self._dice = dice
        self._seen = seen
        self._sync = sync
        self._on_effect = on_effect
        self._on_stop = on_stop
        self._failure: StoreUnavailable | None = None
        self._listener: Listener | None = None

    @property
    def has_stopped(self) -> bool:
        return self._failure is not None

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._listener = listener
        await self._be_slow()
        await self._store.open(listener, runtime)

    async def close(self) -> None:
        await self._be_slow()
        await self._store.close()

    def __getattr__(self, name: str) -> Any:
        found = wrap_attribute(self._store, name, self._call)
        # Found without this function from now on.
        setattr(self, name, found)
        return found

    async def _call(self, name: str, method: Method, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        inline = name == "claim" and self.capabilities.claims_inline and arguments[1][0].ledger is None
        is_read = name in _READS
        if not inline:
            await self._be_slow()
        self._check()
        if name in _TAKE_ROOM and self._dice.roll() < self.rates.is_full:
            self._seen["disk full"] += 1
            raise StoreUnavailable(_FULL, outcome="nothing happened")
        fails = not is_read and self._dice.roll() < self.rates.fails
        if fails and self._dice.roll() < 0.5:
            self._stop("disk error before")
        answer = await method(*arguments, **named)
        if not is_read:
            if name not in _UNSYNCED:
                self._sync()
            self._on_effect(name)
        if fails:
            self._stop("disk error after")
        if not inline:
            await self._be_slow()
            self._check()
        return answer

    async def _be_slow(self) -> None:
        roll = self._dice.roll()
        if roll < self.rates.slow:
            self._seen["slow disk"] += 1
            await self._loop.sleep(int(roll / self.rates.slow * self.rates.slow_ms))
        elif roll < 0.5:
            await self._loop.sleep(0)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _stop(self, what: str) -> None:
        """After a failed write nothing is said any more before the store is opened again."""
        self._seen[what] += 1
        self._failure = StoreUnavailable("the store stopped: the disk failed")
        assert self._listener is not None
        self._listener.stopped()
        self._on_stop()
        raise self._failure
