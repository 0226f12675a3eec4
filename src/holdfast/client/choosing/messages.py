"""The calls on messages over the transport that is current when they are made, moved to the one that replaces it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, aclosing
from typing import TYPE_CHECKING, cast

from holdfast.client.remote.unknown_outcomes import resolve_outcome
from holdfast.client.transport import Transport, TransportUpload
from holdfast.clock import steady_s
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict

if TYPE_CHECKING:
    from holdfast.client.choosing.transport import ChosenTransport


class ChosenMessages:
    """The calls on messages (`client.transport.MessageCalls`) of a `ChosenTransport`."""

    def __init__(self, chosen: "ChosenTransport") -> None:
        self._chosen = chosen

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        is_repeatable = all(draft.key is not None for draft in drafts)
        return await self._chosen.run(
            lambda transport, is_unsure: transport.messages.enqueue(ref, drafts), is_repeatable=is_repeatable
        )

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> TransportUpload:
        """Begin an upload, which stays on its transport until it is over."""
        with ExitStack() as stack:
            transport = stack.enter_context(self._chosen.using())
            inner = await transport.messages.upload(ref, draft, size)
            return _ChosenUpload(inner, stack.pop_all())

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        remaining_ms = _count_down(wait_ms)
        return await self._chosen.run(
            lambda transport, is_unsure: transport.messages.claim(ref, ask, remaining_ms()), is_repeatable=True
        )

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        remaining_ms = _count_down(wait_ms)

        async def exchange_once(transport: Transport, is_unsure: bool) -> Exchanged:
            exchanged = await transport.messages.exchange(ref, verdicts, ask, remaining_ms())
            results = await _resolve(transport, ref, verdicts, exchanged.results, is_unsure)
            return exchanged._replace(results=results)

        return await self._chosen.run(exchange_once, is_repeatable=True)

    async def stream(self, ref: QueueRef, ask: ClaimRequest, prefetch: int) -> AsyncIterator[Delivery]:
        while not self._chosen.is_closed:
            with self._chosen.using() as transport:
                deliveries = cast(AsyncGenerator[Delivery, None], transport.messages.stream(ref, ask, prefetch))
                async with aclosing(deliveries):
                    try:
                        async for delivery in deliveries:
                            yield delivery
                    except StoreUnavailable:
                        # The subscription goes on over the transport that has replaced this one.
                        if transport is self._chosen.current:
                            raise

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        async def settle_once(transport: Transport, is_unsure: bool) -> list[Result]:
            results = await transport.messages.settle(ref, verdicts)
            return await _resolve(transport, ref, verdicts, results, is_unsure)

        return await self._chosen.run(settle_once, is_repeatable=True)

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        return await self._chosen.run(
            lambda transport, is_unsure: transport.messages.read_part(ref, receipt, offset, limit), is_repeatable=True
        )


async def _resolve(
    transport: Transport, ref: QueueRef, verdicts: list[Verdict], results: list[Result], is_unsure: bool
) -> list[Result]:
    """Return the results of verdicts. `is_unsure`: they may have been carried out over the previous transport."""
    if not is_unsure:
        return results
    return [await resolve_outcome(transport, ref, *pair) for pair in zip(verdicts, results, strict=True)]


def _count_down(wait_ms: int | None) -> Callable[[], int | None]:
    """Return a function that returns what remains of a wait."""
    if wait_ms is None or wait_ms == 0:
        return lambda: wait_ms
    until_s = steady_s() + wait_ms / 1_000
    return lambda: max(0, round((until_s - steady_s()) * 1_000))


class _ChosenUpload:
    """An upload over one transport, which stays open until the upload is over."""

    def __init__(self, inner: TransportUpload, held: AbstractContextManager[object]) -> None:
        self.write = inner.write
        self.enqueue = inner.enqueue
        self._inner = inner
        self._held = held

    async def abandon(self) -> None:
        with self._held:
            await self._inner.abandon()
