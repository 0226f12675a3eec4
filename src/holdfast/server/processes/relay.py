"""The services as a door process uses them: every call is passed on to the store process.

Nothing is checked here. The store process checks every call with the same `Session` as a server of one process.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.client.payloads.part_reader import PART, PayloadCursor
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.server.processes.link import StoreLink
from holdfast.server.processes.reports import NO_CALLER, TenantWeights
from holdfast.service.access import ANYONE, Caller
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.service.session import Session
from holdfast.service.subscriptions import DeliveryStream
from holdfast.service.uploads import PayloadStream
from holdfast.service.watches import NewsStream
from holdfast.stores.contract import PayloadReader
from holdfast.wire.framed import answers, calls, links
from holdfast.wire.operation import Operation

R = TypeVar("R")
A = TypeVar("A")


class RelayBackend:
    """The store process as a `Backend`."""

    def __init__(self, link: StoreLink, weights: TenantWeights) -> None:
        self._link = link
        self._weights = weights

    def open_session(self, caller: Caller) -> Session:
        return RelaySession(caller, self._link)

    async def check_store(self) -> list[str]:
        call = links.write_link_call(links.CheckStoreCall(None, None, None))
        return links.read_problems(await self._link.ask(NO_CALLER + call, ANYONE.own_tenant))

    def request_turns(self) -> RequestTurns:
        return RequestTurns(self._weights.weight_of)

    def begin_drain(self) -> None:
        self._link.begin_drain()


class RelaySession(Session):
    """The session of one caller, which passes every call on to the store process."""

    def __init__(self, caller: Caller, link: StoreLink) -> None:
        self.caller = caller
        self.is_operator, self.own_tenant = caller.is_operator, caller.own_tenant
        self._link = link
        self._head = links.write_caller(msgspec.msgpack.encode(caller))

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        answer: A = calls.NAMED[operation.name].read_answer(
            await self._ask(ref, calls.write_named(operation, ref, request))
        )
        return answer

    # --- Messages --------------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        if any(draft.pieces is not None for draft in drafts):
            body = links.write_enqueue_uploaded(ref, drafts)
        else:
            body = calls.write_enqueue(ref, drafts)
        return answers.read_enqueued(await self._ask(ref, body))

    async def enqueue_each(self, batches: Mapping[QueueRef, list[Draft]]) -> dict[QueueRef, list[Enqueued]]:
        body = links.write_enqueue_each(batches)
        return links.read_enqueued_each(await self._link.ask(self._head + body, self.own_tenant, len(body)))

    async def upload(self, ref: QueueRef, draft: Draft) -> PayloadStream:
        number = links.read_number(await self._ask(ref, links.write_open_upload(ref, draft)))
        return _RelayUpload(self, ref, draft, number)

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        body = calls.write_claim(ref, ask, wait_ms)
        return answers.read_claimed(await self._claim(ref, body, ask, wait_ms)).deliveries

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        return answers.read_results(await self._ask(ref, calls.write_settle(ref, verdicts)))

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        body = calls.write_exchange(ref, ask, verdicts, wait_ms)
        return answers.read_claimed(await self._claim(ref, body, ask, wait_ms))

    async def held_by(self, ref: QueueRef, id: object) -> Receipt:
        return links.read_receipt(await self._send(links.HeldByCall(*ref, None, id)))

    async def read_payload(self, ref: QueueRef, delivery: Delivery) -> PayloadReader:
        return _RelayReader(self, ref, delivery)

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        return answers.read_part(await self._ask(ref, calls.write_read_part(ref, receipt, offset, limit)))

    async def read_delivered_part(self, ref: QueueRef, id: int, offset: int, limit: int) -> PayloadPart:
        return answers.read_part(await self._send(links.ReadDeliveredCall(*ref, None, id, offset, limit)))

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        if deliveries:
            verdicts = [Verdict(settle=Settle.UNSEND, receipt=each.receipt) for each in deliveries]
            self._link.spawn(self._settle_unsent(ref, verdicts))

    async def _settle_unsent(self, ref: QueueRef, verdicts: list[Verdict]) -> None:
        await self.settle(ref, verdicts)

    # --- Streams ---------------------------------------------------------------------------------------------------

    async def subscribe(
        self, ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool = False
    ) -> DeliveryStream:
        body = links.write_open_subscription(ref, ask, prefetch, releases_at_end=releases_at_end)
        return _RelaySubscription(self, ref, links.read_number(await self._ask(ref, body)))

    async def watch(self, ref: QueueRef) -> NewsStream:
        return _RelayWatch(self, ref, links.read_number(await self._send(links.OpenWatchCall(*ref, None))))

    # --- Calls of the store process ---------------------------------------------------------------------------------

    async def _ask(self, ref: QueueRef, body: bytes) -> bytes:
        return await self._link.ask(self._head + body, ref.tenant, len(body))

    async def _send(self, call: calls.CallFrame) -> bytes:
        return await self._link.ask(self._head + links.write_link_call(call), call.tenant or self.own_tenant)

    async def _claim(self, ref: QueueRef, body: bytes, ask: ClaimRequest, wait_ms: int | None) -> bytes:
        # The messages of a ledger claim are not given back: their consumer can read the claim again by its number.
        give_back = None if ask.ledger is not None else self._giving_back(ref)
        return await self._link.claim(self._head + body, ref.tenant, give_back, waits=wait_ms != 0)

    def _giving_back(self, ref: QueueRef) -> Callable[[bytes], None]:
        return lambda answer: self.give_back(ref, answers.read_claimed(answer).deliveries)

    async def _close(self, ref: QueueRef, number: int) -> None:
        await self._send(links.CloseCall(*ref, None, number))

    def _close_soon(self, ref: QueueRef, number: int) -> None:
        self._link.spawn(self._close(ref, number))


class _RelayUpload:
    """A payload that is sent to the store process part by part, where a `service.uploads.PayloadUpload` receives it."""

    def __init__(self, session: RelaySession, ref: QueueRef, draft: Draft, number: int) -> None:
        self._session = session
        self._ref = ref
        self._draft = draft
        self._number = number
        self._size = 0
        self._is_closed = False

    async def write(self, part: bytes) -> None:
        self._size += len(part)
        await self._session._send(links.WriteUploadCall(*self._ref, None, self._number, part))

    async def finish(self) -> Draft:
        """Return the message with a reference to the upload, which the store process finishes when it enqueues it."""
        return replace(self._draft, pieces=links.pieces_of_upload(self._number, self._size))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._session._close_soon(self._ref, self._number)


class _RelayReader:
    """A payload in pieces. Its length and checksum are compared before the last bytes are returned."""

    def __init__(self, session: RelaySession, ref: QueueRef, delivery: Delivery) -> None:
        self._session = session
        self._ref = ref
        self._id = delivery.snowflake
        self._cursor = PayloadCursor(delivery)

    def __aiter__(self) -> "_RelayReader":
        return self

    async def __anext__(self) -> bytes:
        cursor = self._cursor
        if cursor.is_over:
            raise StopAsyncIteration
        part = await self._session.read_delivered_part(self._ref, self._id, cursor.offset, PART)
        return cursor.take(part.data)


class _RelaySubscription:
    def __init__(self, session: RelaySession, ref: QueueRef, number: int) -> None:
        self._session = session
        self._ref = ref
        self._number = number

    async def next(self, wait_ms: int | None) -> list[Delivery]:
        session = self._session
        body = session._head + links.write_link_call(links.NextDeliveriesCall(*self._ref, None, self._number, wait_ms))
        answer = await session._link.claim(body, self._ref.tenant, session._giving_back(self._ref), waits=wait_ms != 0)
        return answers.read_claimed(answer).deliveries

    def give_back(self, deliveries: list[Delivery]) -> None:
        # The store process removes them from the subscription when it settles them.
        self._session.give_back(self._ref, deliveries)

    async def end(self) -> None:
        await self._session._close(self._ref, self._number)


class _RelayWatch:
    def __init__(self, session: RelaySession, ref: QueueRef, number: int) -> None:
        self._session = session
        self._ref = ref
        self._number = number
        self.is_closed = False

    async def next(self, wait_ms: int) -> bool:
        session = self._session
        body = session._head + links.write_link_call(links.NextNewsCall(*self._ref, None, self._number, wait_ms))
        news = links.read_news(await session._link.claim(body, self._ref.tenant, None, waits=True))
        self.is_closed = news.is_closed or session._link.is_draining
        return news.has_news

    def close(self) -> None:
        self.is_closed = True
        self._session._close_soon(self._ref, self._number)
