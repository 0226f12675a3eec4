"""A fault store: a wrapper that makes calls of any store fail, lose their replies or wait."""

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
from holdfast.testing.wrapped_calls import Method, wrap_attribute


class Faults(Protocol):
    """Hooks that the fault store calls around each call. A hook may return, raise or wait.

    `call` is the name of the method, with the name of its part if it belongs to one, such as "schedules.fire".
    """

    async def before(self, call: str) -> None:
        """Run before the call. An exception refuses the call, which then has no effect."""

    async def after(self, call: str) -> None:
        """Run after the call. An exception loses the reply, so that the caller does not know the outcome."""


def with_faults(inner: Store, faults: Faults) -> Store:
    """Return a store that calls the hooks of `faults` around each call of `inner`, except opening and closing it."""
    return cast(Store, _FaultStore(inner, faults))


class SeededFaults:
    """Faults that refuse some calls and lose the replies of others. The same seed gives the same faults.

    `refuse` and `lose_reply` are probabilities between 0 and 1.
    """

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
    """Faults that hold calls until `let_go` is called, to test what happens during a call.

    `before` names the calls that are held before they happen, `after` those that are held after they happened. `held`
    has the name and the ticket of each call that is held now.
    """

    def __init__(self, make_ticket: Callable[[], Ticket[None]], *, before: set[str], after: set[str]) -> None:
        self._make_ticket = make_ticket
        self._before = before
        self._after = after
        self.held: list[tuple[str, Ticket[None]]] = []

    def let_go(self) -> None:
        """Let the calls that are held now continue. Later calls are held again."""
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


# Faults do not apply to the opening and closing of the store: a test needs both to work.
_UNAFFECTED = frozenset({"open", "close", "shard_of"})


class _FaultStore:
    def __init__(self, inner: Store, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.capabilities = replace(inner.capabilities, claims_inline=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name) if name in _UNAFFECTED else wrap_attribute(self._inner, name, self._call)

    async def _call(self, name: str, method: Method, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        await self._faults.before(name)
        result = await method(*arguments, **named)
        await self._faults.after(name)
        return result


def with_unwritable_verdicts(inner: Store, unwritable: Collection[int]) -> Store:
    """Return a store that cannot write verdicts on the messages in `unwritable` (snowflakes).

    The result of each such verdict is the error `store_unavailable`; the other verdicts of the same call are applied.
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
