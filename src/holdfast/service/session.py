"""The services as one caller may use them. Doors call the service only through a session.

Each operation checks permission first, so that an error reveals nothing about the queues and messages that exist.
"""

from collections.abc import Mapping
from typing import TypeVar, cast

from msgspec.structs import replace

from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result, TenantSummary
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.service.access import ANYONE, Caller, permit
from holdfast.service.operations import Services
from holdfast.service.queue_refs import parse_names
from holdfast.service.subscriptions import DeliveryStream
from holdfast.service.uploads import PayloadStream
from holdfast.service.watches import NewsStream
from holdfast.stores.contract import PayloadReader
from holdfast.wire import operations
from holdfast.wire.operation import Operation, Target
from holdfast.wire.requests import JournalRequest, MoveRequest, NamesRequest

R = TypeVar("R")
A = TypeVar("A")


class Session:
    """The operations that a caller may use. Each raises `Forbidden` if the caller lacks the right."""

    def __init__(self, caller: Caller, services: Services) -> None:
        self.caller = caller
        # Attributes, because they are read for every call.
        self.is_operator, self.own_tenant = caller.is_operator, caller.own_tenant
        self._services = services
        self._messages = services.messages

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        """Carry out an operation without a method of its own here, and return its result."""
        permit(self.caller, operation, None if operation.target is Target.SERVER else ref.tenant)
        if isinstance(request, MoveRequest):
            permit(self.caller, operation, request.to.tenant)
        elif isinstance(request, JournalRequest):
            # An operator gets the events of all tenants, or of the one that it names; another caller gets its own.
            permit(self.caller, operation, request.tenant)
            if not self.caller.is_operator:
                request = replace(request, tenant=self.caller.tenant)
        elif isinstance(request, NamesRequest):
            tenant, queue = parse_names(request, self.own_tenant)
            permit(self.caller, operation, tenant)
            request = replace(request, tenant=tenant if self.is_operator else self.own_tenant, queue=queue)
        answer = await self._services.call(operation, ref, request)
        if operation is operations.TENANTS and not self.caller.is_operator:
            own = [each for each in cast(list[TenantSummary], answer) if each.tenant == self.caller.tenant]
            return cast(A, own)
        return answer

    def check_metrics(self) -> None:
        """Raise `Forbidden` if the caller may not read the metrics, which show all tenants."""
        permit(self.caller, operations.METRICS, None)

    # --- Messages ------------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        """Add messages to a queue, all or none; see `QueueService.enqueue`."""
        permit(self.caller, operations.ENQUEUE, ref.tenant)
        return await self._messages.enqueue(ref, drafts)

    async def enqueue_each(self, batches: Mapping[QueueRef, list[Draft]]) -> dict[QueueRef, list[Enqueued]]:
        """Add messages to several queues.

        All permissions and messages are checked before any message is added. Then each queue gets its messages, all or
        none of them.
        """
        for ref in batches:
            permit(self.caller, operations.ENQUEUE_EACH, ref.tenant)
        return await self._messages.enqueue_each(batches)

    async def upload(self, ref: QueueRef, draft: Draft) -> PayloadStream:
        """Begin the upload of a message; see `QueueService.upload`."""
        permit(self.caller, operations.UPLOAD, ref.tenant)
        return await self._messages.upload(ref, draft)

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        """Claim ready messages, waiting up to `wait_ms` (None: for ever); see `QueueService.claim`."""
        permit(self.caller, operations.CLAIM, ref.tenant)
        return await self._messages.claim(ref, self._owned(ask), wait_ms)

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        """Carry out verdicts, and return the result of each; see `QueueService.settle`."""
        permit(self.caller, operations.SETTLE, ref.tenant)
        return await self._messages.settle(ref, verdicts)

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        """Settle earlier deliveries, then claim; see `QueueService.exchange`."""
        permit(self.caller, operations.EXCHANGE, ref.tenant)
        return await self._messages.exchange(ref, verdicts, self._owned(ask), wait_ms)

    async def held_by(self, ref: QueueRef, id: object) -> Receipt:
        """Return the receipt of a message that this caller holds, for protocols whose verdicts have only its id.

        Without authentication every caller counts as the holder.
        """
        permit(self.caller, operations.HELD_BY, ref.tenant)
        owner = None if self.caller == ANYONE else self.caller.subject
        return await self._messages.held_by(ref, id, owner)

    async def subscribe(
        self, ref: QueueRef, ask: ClaimRequest, prefetch: int, *, releases_at_end: bool = False
    ) -> DeliveryStream:
        """Open a subscription; see `QueueService.subscribe`."""
        permit(self.caller, operations.SUBSCRIBE, ref.tenant)
        return await self._messages.subscribe(ref, self._owned(ask), prefetch, releases_at_end=releases_at_end)

    async def watch(self, ref: QueueRef) -> NewsStream:
        """Open a watch; see `QueueService.watch`."""
        permit(self.caller, operations.WATCH, ref.tenant)
        return await self._messages.watch(ref)

    async def read_payload(self, ref: QueueRef, delivery: Delivery) -> PayloadReader:
        """Return a reader of the payload of a delivery of this session that has it in pieces."""
        permit(self.caller, operations.READ_PAYLOAD, ref.tenant)
        return await self._messages.read_payload(ref, delivery)

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        """Return a part of the payload of a message that the receipt holds. Any caller may have claimed it."""
        permit(self.caller, operations.READ_PART, ref.tenant)
        return await self._messages.read_part(ref, receipt, offset, limit)

    async def read_delivered_part(self, ref: QueueRef, id: int, offset: int, limit: int) -> PayloadPart:
        """Read a part of the payload of a message that was delivered to a session of this caller."""
        permit(self.caller, operations.READ_PAYLOAD, ref.tenant)
        return await self._messages.read_delivered_part(ref, id, offset, limit)

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """Make deliveries of this session that could not be sent ready again at once, without counting an attempt."""
        self._messages.give_back(ref, deliveries)

    def _owned(self, ask: ClaimRequest) -> ClaimRequest:
        """Return the claim with an owner: the given one, or else the subject of the credential."""
        return replace(ask, owner=self.caller.subject) if ask.owner is None and self.caller.subject else ask
