"""The worker's connection to its queues, with awaitable calls over either kind of client."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from holdfast.client.blocking import Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.message import MessageFacts
from holdfast.client.transport import Transport
from holdfast.model.answers import Delivery, Result
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.worker.work import WorkMessage

# The time that a claim waits for messages. It is shorter if the claim cannot be cancelled, because a stop has to wait
# for it.
WAIT_MS = 20_000
WAIT_UNCANCELLED_MS = 500


class WorkerConnection:
    """A connection over an async client."""

    def __init__(self, transport: Transport, client: AsyncHoldfast, *, is_cancellable: bool = True) -> None:
        self.messages = transport.messages
        self._transport = transport
        self.client = client
        self.is_cancellable = is_cancellable
        self.wait_ms = WAIT_MS if is_cancellable else WAIT_UNCANCELLED_MS

    async def claim(self, ref: QueueRef, claim_request: ClaimRequest, wait_ms: int) -> list[WorkMessage]:
        """Claim messages, and wait up to `wait_ms` for at least one."""
        return self._messages_of(ref, await self.messages.claim(ref, claim_request, wait_ms))

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], claim_request: ClaimRequest
    ) -> tuple[list[Result], list[WorkMessage]]:
        """Carry out verdicts and claim messages in one call, which does not wait for messages."""
        exchanged = await self.messages.exchange(ref, verdicts, claim_request)
        return exchanged.results, self._messages_of(ref, exchanged.deliveries)

    def _messages_of(self, ref: QueueRef, deliveries: list[Delivery]) -> list[WorkMessage]:
        return [
            WorkMessage(self._transport, MessageFacts(delivery, ref, delivery.lease_expires_at, delivery.state))
            for delivery in deliveries
        ]


def connect_to(client: AsyncHoldfast) -> WorkerConnection:
    """Return a connection over a connected client."""
    return WorkerConnection(client._connected(), client)


class ThreadWorkerConnection(WorkerConnection):
    """A connection over a blocking client. Each call runs in its own thread and cannot be cancelled."""

    def __init__(self, hf: Holdfast, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-link")
        transport = wrap_transport(hf._inner._connected(), self._in_thread(hf._driver.run))
        super().__init__(transport, client_of(transport), is_cancellable=False)

    def _in_thread(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> "CallWrapper":
        async def wrap(work: Coroutine[Any, Any, Any]) -> Any:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run, work)

        return wrap

    def close(self) -> None:
        self._threads.shutdown(wait=False)


CallWrapper = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class _WrappedCalls:
    """A service whose calls are passed through `wrap`."""

    def __init__(self, inner: object, wrap: CallWrapper) -> None:
        self._inner = inner
        self._wrap = wrap

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        return lambda *args, **named: self._wrap(call(*args, **named))


class _WrappedMessages(_WrappedCalls):
    """The message calls of a transport, which also return uploads."""

    async def upload(self, *args: Any, **named: Any) -> Any:
        """Return an upload whose calls are wrapped too."""
        return _WrappedCalls(await self.__getattr__("upload")(*args, **named), self._wrap)


class _WrappedTransport:
    """A transport whose calls are passed through `wrap`."""

    def __init__(self, inner: Transport, wrap: CallWrapper) -> None:
        self.messages = _WrappedMessages(inner.messages, wrap)
        self.call = _WrappedCalls(inner, wrap).call

    async def close(self) -> None:
        """Do nothing: the inner transport belongs to its opener."""


def wrap_transport(inner: Transport, wrap: CallWrapper) -> Transport:
    """Return a transport whose calls are passed through `wrap`, for example to run them in another thread."""
    return cast("Transport", _WrappedTransport(inner, wrap))


def client_of(transport: Transport) -> AsyncHoldfast:
    """Return an async client that is connected over `transport`."""

    async def connect() -> Transport:
        return transport

    client = AsyncHoldfast(connect)
    client._transport = transport
    return client
