"""A transport whose calls a test sees by name, and may keep from being made."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from holdfast.client.transport import Transport
from holdfast.model.names import QueueRef
from holdfast.wire.operation import Operation

See = Callable[[str], Awaitable[None]]


def watched(inner: Transport, see: See) -> Transport:
    """Return `inner` as a transport that awaits `see` with the name of each call before it is made."""
    return cast("Transport", _Watched(inner, see))


class _Watched:
    def __init__(self, inner: Transport, see: See) -> None:
        self.messages = _WatchedMessages(inner.messages, see)
        self._inner = inner
        self._see = see

    async def call(self, operation: Operation[Any, Any], ref: QueueRef, request: Any) -> Any:
        await self._see(operation.name)
        return await self._inner.call(operation, ref, request)


class _WatchedMessages:
    def __init__(self, inner: object, see: See) -> None:
        self._inner = inner
        self._see = see

    def __getattr__(self, name: str) -> Any:
        async def call(*given: Any) -> Any:
            await self._see(name)
            return await getattr(self._inner, name)(*given)

        return call
