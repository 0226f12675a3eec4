"""A store that fails on purpose: any store, with a script of faults around each of its calls."""

import random
from collections.abc import Callable, Collection
from typing import Any, Protocol, cast

from msgspec.structs import replace

from holdfast.model.answers import Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.runtime import Ticket
from holdfast.stores.contract import Store
from holdfast.testing.wrapped_calls import Method, wrapped


class Faults(Protocol):
    """Decides what goes wrong: each hook may return, raise, or suspend for a while.

    `call` is the method's name; for a part of the store with the part's, such as "schedules.fire".
    """

    async def before(self, call: str) -> None:
        """The call has not happened yet: raising here refuses it."""

    async def after(self, call: str) -> None:
        """The call has happened: raising here loses its reply, and its outcome is unknown to the caller."""


def with_faults(inner: Store, faults: Faults) -> Store:
    return cast(Store, _FaultStore(inner, faults))


class SeededFaults:
    """Refuses some calls and loses the replies of others; the same seed, the same faults."""

    def __init__(self, seed: int, *, refuse: float = 0.0, lose_reply: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._refuse = refuse
        self._lose_reply = lose_reply

    async def before(self, call: str) -> None:
        if self._random.random() < self._refuse:
            raise StoreUnavailable(f"{call} was refused by the fault store", outcome="nothing happened")

    async def after(self, call: str) -> None:
        if self._random.random() < self._lose_reply:
            raise StoreUnavailable(f"the reply of {call} was lost by the fault store", outcome="unknown")


class HeldCalls:
    """Holds calls of the given names until they are let go: for tests of what happens meanwhile."""

    def __init__(self, make_ticket: Callable[[], Ticket[None]], *, before: set[str], after: set[str]) -> None:
        self._make_ticket = make_ticket
        self._before = before
        self._after = after
        self.held: list[tuple[str, Ticket[None]]] = []

    def let_go(self) -> None:
        """Every call held now goes on; later ones are held again."""
        held, self.held = self.held, []
        for _, ticket in held:
            ticket.set_result(None)

    async def before(self, call: str) -> None:
        if call in self._before:
            await self._hold(call)

    async def after(self, call: str) -> None:
        if call in self._after:
            await self._hold(call)

    async def _hold(self, call: str) -> None:
        ticket = self._make_ticket()
        self.held.append((call, ticket))
        await ticket


# Opening and closing are the frame of a test, not what it is about.
_FRAME = frozenset({"open", "close", "shard_of"})


class _FaultStore:
    def __init__(self, inner: Store, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.capabilities = replace(inner.capabilities, claims_inline=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name) if name in _FRAME else wrapped(self._inner, name, self._call)

    async def _call(self, name: str, method: Method, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        await self._faults.before(name)
        answer = await method(*arguments, **named)
        await self._faults.after(name)
        return answer


def with_unwritable_verdicts(inner: Store, unwritable: Collection[int]) -> Store:
    """Return the store, but verdicts on the messages in `unwritable` (snowflakes) fail to be written.

    Each of them gets a result `store_unavailable` of its own; the other verdicts of the same call are carried out.
    The collection is read at every call, so a test can add and remove ids while the store is open.
    """
    return cast(Store, _UnwritableVerdicts(inner, unwritable))


class _UnwritableVerdicts:
    def __init__(self, inner: Store, unwritable: Collection[int]) -> None:
        self._inner = inner
        self._unwritable = unwritable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        writable = [each for each in verdicts if each.receipt.id not in self._unwritable]
        results = iter(await self._inner.settle(ref, writable, now_ms))
        return [
            Result(snowflake=each.receipt.id, ok=False, error=StoreUnavailable.code, is_known=False)
            if each.receipt.id in self._unwritable
            else next(results)
            for each in verdicts
        ]
