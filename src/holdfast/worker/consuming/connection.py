"""The worker's way to its queues: whatever `holdfast.open` and `open_async` give, as calls to await."""

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

# How long a claim waits at the server. Where it cannot be cancelled, a stop has to wait for it.
WAIT_MS = 20_000
WAIT_UNCANCELLED_MS = 500


class WorkerConnection:
    def __init__(self, transport: Transport, client: AsyncHoldfast, *, is_cancellable: bool = True) -> None:
        self.messages = transport.messages
        self._transport = transport
        self.client = client
        self.is_cancellable = is_cancellable
        self.wait_ms = WAIT_MS if is_cancellable else WAIT_UNCANCELLED_MS

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int) -> list[WorkMessage]:
        return self._messages_of(ref, await self.messages.claim(ref, ask, wait_ms))

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest
    ) -> tuple[list[Result], list[WorkMessage]]:
        """Verdicts that ride on a claim, which then does not wait."""
        exchanged = await self.messages.exchange(ref, verdicts, ask)
        return exchanged.results, self._messages_of(ref, exchanged.deliveries)

    def _messages_of(self, ref: QueueRef, deliveries: list[Delivery]) -> list[WorkMessage]:
        return [
            WorkMessage(self._transport, MessageFacts(delivery, ref, delivery.lease_expires_at, delivery.state))
            for delivery in deliveries
        ]


def link_of(client: AsyncHoldfast) -> WorkerConnection:
    """Over a connected client."""
    return WorkerConnection(client._connected(), client)


class ThreadWorkerConnection(WorkerConnection):
    """Over a blocking client: each call in a thread of its own, which nothing can call back."""

    def __init__(self, hf: Holdfast, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-link")
        transport = carried(hf._inner._connected(), self._in_thread(hf._driver.run))
        super().__init__(transport, client_of(transport), is_cancellable=False)

    def _in_thread(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> "Carry":
        async def carry(work: Coroutine[Any, Any, Any]) -> Any:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run, work)

        return carry

    def close(self) -> None:
        self._threads.shutdown(wait=False)


Carry = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class _Carried:
    """Every call of a service, carried out in another way."""

    def __init__(self, inner: object, carry: Carry) -> None:
        self._inner = inner
        self._carry = carry

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        return lambda *args, **named: self._carry(call(*args, **named))


class _CarriedMessages(_Carried):
    async def upload(self, *args: Any, **named: Any) -> Any:
        """What it answers has calls of its own."""
        return _Carried(await self.__getattr__("upload")(*args, **named), self._carry)


class _CarriedTransport:
    def __init__(self, inner: Transport, carry: Carry) -> None:
        self.messages = _CarriedMessages(inner.messages, carry)
        self.call = _Carried(inner, carry).call

    async def close(self) -> None:
        """Whoever opened the inner one closes it."""


def carried(inner: Transport, carry: Carry) -> Transport:
    return cast("Transport", _CarriedTransport(inner, carry))


def client_of(transport: Transport) -> AsyncHoldfast:
    """A client that is connected already."""

    async def connect() -> Transport:
        return transport

    client = AsyncHoldfast(connect)
    client._transport = transport
    return client
