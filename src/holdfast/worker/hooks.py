"""What a program wants to be told."""

import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from holdfast.model.errors import InvalidArgument
from holdfast.worker.consuming.waiting import log

Hook = Callable[..., Any]


class Hooks:
    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = defaultdict(list)

    def add(self, name: str, hook: Hook) -> Hook:
        if not callable(hook):
            raise InvalidArgument(f"a hook is a function: write @worker.{name} above a def", field=name)
        self._hooks[name].append(hook)
        return hook

    def with_last(self, name: str, hook: Hook) -> "Hooks":
        """These, and one more after them."""
        more = Hooks()
        more._hooks.update({each: list(hooks) for each, hooks in self._hooks.items()})
        more.add(name, hook)
        return more

    async def call(self, name: str, *args: Any) -> None:
        """In the order they were given; what one raises goes to the caller."""
        for hook in self._hooks.get(name, ()):
            if inspect.isawaitable(answer := hook(*args)):
                await answer

    async def tell(self, name: str, *args: Any) -> None:
        """The same, but what a hook raises is only logged: what it is told of has happened already."""
        try:
            await self.call(name, *args)
        except Exception:
            log.exception("the worker's hook %s failed", name)
