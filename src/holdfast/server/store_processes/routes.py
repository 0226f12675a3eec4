"""A divided store as the doors of a process use it: each call goes to the store process that has its queue."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar, cast

from msgspec.structs import replace

from holdfast.clock import steady_s
from holdfast.model.answers import (
    Delivery,
    Enqueued,
    Exchanged,
    HotQueue,
    NumberedTenant,
    PayloadPart,
    QueueSummary,
    Result,
    Stats,
)
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, Receipt, check_drafts
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.server.processes.link import StoreLink
from holdfast.server.processes.peers import PORTION_SHIFT
from holdfast.server.processes.relay import RelayBackend, RelaySession
from holdfast.server.processes.reports import TenantWeights
from holdfast.server.store_processes.division import RemoteEnd
from holdfast.server.store_processes.streams import OpenedWatch, RoutedSubscription, RoutedWatch
from holdfast.service.access import Caller, permit
from holdfast.service.session import Session
from holdfast.service.subscriptions import DeliveryStream
from holdfast.service.uploads import PayloadStream
from holdfast.service.watches import NewsStream
from holdfast.stores.contract import PayloadReader
from holdfast.stores.rocks.portions.calls import Locate, Located
from holdfast.stores.rocks.portions.coordinator import gather
from holdfast.stores.rocks.portions.misplaced import is_misplaced
from holdfast.telemetry.metrics import sum_stats
from holdfast.wire import operations
from holdfast.wire.framed.links import number_of_upload
from holdfast.wire.operation import Operation, Target

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")

_MAX_KNOWN = 200_000
_TRIES = 20


class StoreRoutes:
    """The links of one door process to all store processes, and the queues that it knows the place of."""

    def __init__(self, links: Sequence[StoreLink], weights: TenantWeights, max_payload: int) -> None:
        """`links` are in the order of the portions; the first one is the coordinator's."""
        self.links = links
        self.weights = weights
        self.max_payload = max_payload
        self._coordinator = RemoteEnd(links[0], is_coordinator=True)
        self._known: dict[QueueRef, int] = {}

    async def locate(self, ref: QueueRef, stale: int | None = None) -> int:
        """Return the number of the store process for a call on a queue. `stale` is the one that did not have it."""
        number = self._known.get(ref)
        if number is not None and number != stale:
            return number
        self._known.pop(ref, None)
        located: Located = await self._coordinator.ask(Locate(ref, stale))
        # The first process serves the calls on missing queues. Whether one is still missing is asked each time.
        if located.is_there:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[ref] = located.portion
        return located.portion

    def forget(self, ref: QueueRef) -> None:
        """Ask for the place of a queue again."""
        self._known.pop(ref, None)


class RoutedBackend(RelayBackend):
    """The store processes as a `Backend`. The first one says whether the server is ready."""

    def __init__(self, routes: StoreRoutes) -> None:
        super().__init__(routes.links[0], routes.weights)
        self._routes = routes

    def open_session(self, caller: Caller) -> Session:
        return RoutedSession(caller, self._routes)

    def begin_drain(self) -> None:
        for link in self._routes.links:
            link.begin_drain()


def _join_names(parts: list[NumberedTenant]) -> list[NumberedTenant]:
    """Return each tenant once, with its queues of all store processes. Every process finds a queue that is named."""
    tenants: dict[str, NumberedTenant] = {}
    for part in parts:
        known = tenants.get(part.tenant)
        queues = {each.queue: each for each in (*(() if known is None else known.queues), *part.queues)}
        tenants[part.tenant] = replace(part, queues=[queues[name] for name in sorted(queues)])
    return [tenants[name] for name in sorted(tenants)]


class RoutedSession(Session):
    """The services of all store processes, as one caller may use them."""

    def __init__(self, caller: Caller, routes: StoreRoutes) -> None:
        self.caller = caller
        self.is_operator, self.own_tenant = caller.is_operator, caller.own_tenant
        self._routes = routes
        self._sessions = [RelaySession(caller, link) for link in routes.links]

    async def _at(self, ref: QueueRef, work: Callable[[RelaySession], Awaitable[T]]) -> T:
        """Return the result of `work` in the store process with a queue."""
        stale: int | None = None
        for _ in range(_TRIES):
            number = await self._routes.locate(ref, stale)
            try:
                return await work(self._sessions[number])
            except StoreUnavailable as error:
                if not is_misplaced(error):
                    raise
            stale = number
        raise StoreUnavailable(f"{ref} keeps being deleted and made again: try again")

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        if operation.target is Target.QUEUE:
            return await self._at(ref, lambda session: session.call(operation, ref, request))
        if operation is operations.QUEUES:
            pages = await self._call_all(operation, ref, request)
            every: list[QueueSummary] = [each for page in pages for each in cast(list[QueueSummary], page)]
            return cast(A, sorted(every, key=lambda each: each.queue.encode()))
        if operation is operations.HOT_QUEUES:
            # Each share is one of the accesses of a process.
            hot = [
                each for page in await self._call_all(operation, ref, request) for each in cast(list[HotQueue], page)
            ]
            return cast(A, sorted(hot, key=lambda each: -each.share))
        if operation is operations.NAMES:
            pages = await self._call_all(operation, ref, request)
            return cast(A, _join_names([each for page in pages for each in cast(list[NumberedTenant], page)]))
        if operation is operations.TENANT_STATS:
            return cast(A, sum_stats(cast(list[Stats], await self._call_all(operation, ref, request))))
        return await self._sessions[0].call(operation, ref, request)

    async def _call_all(self, operation: Operation[R, A], ref: QueueRef, request: R) -> list[A]:
        return await gather([session.call(operation, ref, request) for session in self._sessions])

    # --- Messages ----------------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        for draft in drafts:
            if (number := number_of_upload(draft)) is not None:
                # The payload is in one process, so the message can be enqueued nowhere else.
                return await self._sessions[number >> PORTION_SHIFT].enqueue(ref, drafts)
        return await self._at(ref, lambda session: session.enqueue(ref, drafts))

    async def enqueue_each(self, batches: Mapping[QueueRef, list[Draft]]) -> dict[QueueRef, list[Enqueued]]:
        for ref in batches:
            permit(self.caller, operations.ENQUEUE_EACH, ref.tenant)
        check_drafts([draft for drafts in batches.values() for draft in drafts], self._routes.max_payload)
        return {ref: await self.enqueue(ref, drafts) for ref, drafts in batches.items()}

    async def upload(self, ref: QueueRef, draft: Draft) -> PayloadStream:
        return await self._at(ref, lambda session: session.upload(ref, draft))

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        ends = _Ends(wait_ms)
        return await self._at(ref, lambda session: session.claim(ref, ask, ends.remaining_ms()))

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        return await self._at(ref, lambda session: session.settle(ref, verdicts))

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        ends = _Ends(wait_ms)
        return await self._at(ref, lambda session: session.exchange(ref, verdicts, ask, ends.remaining_ms()))

    async def held_by(self, ref: QueueRef, id: object) -> Receipt:
        return await self._at(ref, lambda session: session.held_by(ref, id))

    async def read_payload(self, ref: QueueRef, delivery: Delivery) -> PayloadReader:
        return await self._at(ref, lambda session: session.read_payload(ref, delivery))

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        return await self._at(ref, lambda session: session.read_part(ref, receipt, offset, limit))

    async def read_delivered_part(self, ref: QueueRef, id: int, offset: int, limit: int) -> PayloadPart:
        return await self._at(ref, lambda session: session.read_delivered_part(ref, id, offset, limit))

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        if deliveries:
            self._routes.links[0].spawn(self._give_back(ref, deliveries))

    async def _give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        number = await self._routes.locate(ref)
        self._sessions[number].give_back(ref, deliveries)

    # --- Streams -----------------------------------------------------------------------------------------------------

    async def subscribe(
        self, ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool = False
    ) -> DeliveryStream:
        def open_at(session: RelaySession) -> Awaitable[DeliveryStream]:
            return session.subscribe(ref, ask, prefetch, releases_at_end=releases_at_end)

        async def reopen() -> DeliveryStream:
            self._routes.forget(ref)
            return await self._at(ref, open_at)

        return RoutedSubscription(await self._at(ref, open_at), reopen)

    async def watch(self, ref: QueueRef) -> NewsStream:
        async def open_at(session: RelaySession) -> OpenedWatch:
            return OpenedWatch(await session.watch(ref), self._sessions.index(session))

        watch = await self._at(ref, open_at)

        async def reopen(number: int, is_doubtful: bool) -> OpenedWatch:
            found = await self._routes.locate(ref, number if is_doubtful else None)
            return watch._replace(number=number) if found == number else await self._at(ref, open_at)

        return RoutedWatch(watch, reopen)


class _Ends:
    """The remaining wait of a claim, which may be sent to one process after another."""

    def __init__(self, wait_ms: int | None) -> None:
        self._wait_ms = wait_ms
        self._began_s = steady_s()

    def remaining_ms(self) -> int | None:
        if not self._wait_ms:
            return self._wait_ms
        return max(0, self._wait_ms - int((steady_s() - self._began_s) * 1_000))
