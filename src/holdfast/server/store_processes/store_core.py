"""The core of one store process: the services over its portion of the store."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.dice import Dice
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.runtime import Runtime
from holdfast.server.compose import Core
from holdfast.server.settings import Settings
from holdfast.server.store_processes.tokens import DividedBuckets, Take
from holdfast.service.access import Caller
from holdfast.service.operations import Services
from holdfast.service.session import Session
from holdfast.service.subscriptions import DeliveryStream
from holdfast.service.uploads import PayloadStream
from holdfast.service.watches import NewsStream
from holdfast.stores.contract import PayloadReader, Store
from holdfast.stores.rocks.portions.store import PortionStore
from holdfast.stores.values import TenantRow
from holdfast.wire import operations
from holdfast.wire.operation import Operation, Target

R = TypeVar("R")
A = TypeVar("A")

_CREATING = frozenset({operations.SET_POLICY.name, operations.SET_SCHEDULE.name})


class StoreCore(Core):
    """A portion of a store with its services. Calls for queues of other portions are refused as misplaced."""

    def __init__(
        self,
        portion: PortionStore,
        runtime: Runtime,
        settings: Settings,
        take_tokens: Take,
        dice: Dice | None = None,
        store: Store | None = None,
    ) -> None:
        """`take_tokens` takes those of tenants' limits. `store` stands for the portion, in tests of its failures."""
        super().__init__(store or portion, runtime, settings, dice)
        self.portion = portion
        portion.on_tenants = self._learn_tenants
        self.admission.set_buckets(DividedBuckets(take_tokens, runtime.spawn))

    def _learn_tenants(self, rows: Sequence[TenantRow]) -> None:
        for row in rows:
            self._directory.remember_tenant(row)

    def open_session(self, caller: Caller) -> Session:
        """Return the services as this caller may use them."""
        return OwnerSession(caller, self.services, self.portion, auto_create=self._directory.auto_create)


class OwnerSession(Session):
    """The operations on the queues of one store process."""

    def __init__(self, caller: Caller, services: Services, portion: PortionStore, *, auto_create: bool) -> None:
        super().__init__(caller, services)
        self._portion = portion
        self._check = portion.check_owner
        self._auto_create = auto_create

    def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> Coroutine[Any, Any, A]:
        if operation.target is Target.QUEUE:
            self._check(ref, creates=operation.name in _CREATING)
        return super().call(operation, ref, request)

    def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> Coroutine[Any, Any, list[Enqueued]]:
        self._check(ref, creates=self._auto_create)
        return super().enqueue(ref, drafts)

    def enqueue_each(
        self, batches: Mapping[QueueRef, list[Draft]]
    ) -> Coroutine[Any, Any, dict[QueueRef, list[Enqueued]]]:
        for ref in batches:
            self._check(ref, creates=self._auto_create)
        return super().enqueue_each(batches)

    async def upload(self, ref: QueueRef, draft: Draft) -> PayloadStream:
        self._check(ref, creates=self._auto_create)
        upload = await super().upload(ref, draft)
        if self._auto_create:
            # The payload must come to the process that the message will be in.
            await self._portion.require_owner(ref)
        return upload

    def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> Coroutine[Any, Any, list[Delivery]]:
        self._check(ref, creates=False)
        return super().claim(ref, ask, wait_ms)

    def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> Coroutine[Any, Any, list[Result]]:
        self._check(ref, creates=False)
        return super().settle(ref, verdicts)

    def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Coroutine[Any, Any, Exchanged]:
        self._check(ref, creates=False)
        return super().exchange(ref, verdicts, ask, wait_ms)

    def held_by(self, ref: QueueRef, id: object) -> Coroutine[Any, Any, Receipt]:
        self._check(ref, creates=False)
        return super().held_by(ref, id)

    def subscribe(
        self, ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool = False
    ) -> Coroutine[Any, Any, DeliveryStream]:
        self._check(ref, creates=False)
        return super().subscribe(ref, ask, prefetch, releases_at_end=releases_at_end)

    def watch(self, ref: QueueRef) -> Coroutine[Any, Any, NewsStream]:
        self._check(ref, creates=False)
        return super().watch(ref)

    def read_payload(self, ref: QueueRef, delivery: Delivery) -> Coroutine[Any, Any, PayloadReader]:
        self._check(ref, creates=False)
        return super().read_payload(ref, delivery)

    def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Coroutine[Any, Any, PayloadPart]:
        self._check(ref, creates=False)
        return super().read_part(ref, receipt, offset, limit)

    def read_delivered_part(self, ref: QueueRef, id: int, offset: int, limit: int) -> Coroutine[Any, Any, PayloadPart]:
        self._check(ref, creates=False)
        return super().read_delivered_part(ref, id, offset, limit)
