"""A wrapper that runs code around each call of a store and of the parts of a store."""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.stores.contract import Store

Method = Callable[..., Awaitable[Any]]
# Receives the name of the call, its method, its positional arguments and its keyword arguments.
Around = Callable[[str, Method, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]

_PARTS = frozenset({"directory", "schedules", "ledgers", "payloads"})


def wrap_attribute(store: Store, name: str, around: Around) -> Any:
    """Return the store's attribute `name`, with `around` run for each call of it.

    A call of a part has a name with the part's, such as "schedules.fire". The part is read from the store only when
    the call is made, because a store that is reopened has new parts.
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
