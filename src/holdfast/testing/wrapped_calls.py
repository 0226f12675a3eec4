"""A store with code around each of its calls, also those of its parts."""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.stores.contract import Store

Method = Callable[..., Awaitable[Any]]
# Is given the call's name, its method, and its arguments.
Around = Callable[[str, Method, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]

_PARTS = frozenset({"directory", "schedules", "ledgers", "payloads"})


def wrapped(store: Store, name: str, around: Around) -> Any:
    """Return the store's attribute `name` with `around` around its calls.

    A method of a part is called "schedules.fire". The part is read from the store when the call goes on, because a
    store that reopens has new ones.
    """
    return _Part(store, name, around) if name in _PARTS else _call(name, getattr(store, name), around)


class _Part:
    def __init__(self, store: Store, name: str, around: Around) -> None:
        self._store = store
        self._name = name
        self._around = around

    def __getattr__(self, name: str) -> Method:
        async def method(*arguments: Any, **named: Any) -> Any:
            return await getattr(getattr(self._store, self._name), name)(*arguments, **named)

        return _call(f"{self._name}.{name}", method, self._around)


def _call(name: str, method: Method, around: Around) -> Method:
    async def call(*arguments: Any, **named: Any) -> Any:
        return await around(name, method, arguments, named)

    return call
