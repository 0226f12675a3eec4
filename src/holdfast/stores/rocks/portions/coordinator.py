"""The coordinator of a divided store, in the process with the first portion.

    tenants    it changes their rows, and a change is over once every portion has it
    queues     it chooses the number of a new queue, and with it the portion, where the queue is then `assigned`
    quotas     it divides those of a tenant into parts, one for each portion, that never exceed them together. A portion
               that needs more asks; before it is refused, the portions give back what they do not use
    transfers  a move between portions is announced. Until it is over, its messages count here for the quotas

A portion whose process has ended keeps its parts and its announced transfers until it joins again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, cast

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas, TenantConfig
from holdfast.stores.logic.quotas import check_quotas, check_room_for_queue
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.portions import calls
from holdfast.stores.rocks.portions.calls import NOTHING, Amount, PortionCall, PortionEnd
from holdfast.stores.rocks.portions.portion import portion_of
from holdfast.stores.rocks.portions.routing import PortionDirectory
from holdfast.stores.rocks.portions.store import PortionStore
from holdfast.stores.rocks.portions.transfer_gate import TransferGate
from holdfast.stores.values import QueueRow, TenantRow

# Granted beyond the need of the moment while the quotas have plenty left.
_SPARE = Amount(1_000, 4 << 20)
_MAX_ELSEWHERE = 1_000_000


class _Assigned(NamedTuple):
    portion: int
    tenant: TenantRow
    queue_id: int


class _Transfer(NamedTuple):
    source: int
    target: int
    tenant: str
    amount: Amount


class Coordinator:
    """The `PortionEnd` that every portion calls."""

    def __init__(self, portions: int) -> None:
        """`portions` is their number. `attach` comes before the first call."""
        self._count = portions
        # Called with the number of a portion that did not answer, whose process must be replaced.
        self.on_silence: Callable[[int], None] = lambda number: None
        # The portions that have joined.
        self._ends: dict[int, PortionEnd] = {}
        self._version = 0
        self._rows = asyncio.Lock()
        self._assigning: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._dividing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # The queues that were assigned and do not exist yet.
        self._assigned: dict[QueueRef, _Assigned] = {}
        # The highest queue_id given, by tenant_id.
        self._highest: dict[int, int] = {}
        # By tenant: the last count of its queues, and the queues assigned since.
        self._most_queues: dict[str, int] = {}
        # The parts of quotas, by tenant and portion.
        self._parts: defaultdict[str, dict[int, Amount]] = defaultdict(dict)
        self._transfers: dict[int, _Transfer] = {}
        self._last_transfer = 0
        self._moving: TransferGate | None = None

    def attach(self, store: PortionStore) -> None:
        """Use the first portion, which has the rows of tenants."""
        self._store = store
        self._moving = TransferGate(store.layout, store.runtime)

    async def ask(self, call: PortionCall) -> Any:
        """Carry out a call of a portion; see `PortionEnd.ask`."""
        match call:
            case calls.Locate():
                return await self._locate(call.ref, stale=call.stale)
            case calls.RequireOwner():
                return await self._assign(call.ref)
            case calls.FindAnywhere():
                found = await self._find(call.ref)
                return None if found is None else found[1]
            case calls.CreateAnywhere():
                return await self._end(await self._assign(call.ref)).ask(calls.CreateAssigned(call.ref, call.now_ms))
            case calls.NoteCreated():
                return self._note_created(call.ref, call.portion)
            case calls.PutTenant():
                return await self._put_tenant(call.tenant, call.config)
            case calls.GrantMore():
                return await self._grant(call)
            case calls.BeginTransfer():
                return await self._begin_transfer(call)
            case calls.EndTransfer():
                return await self._end_transfer(call)
            case calls.CopyPiece() | calls.HasArrived() | calls.Arrive():
                return await self._end(self._portion_of(call.target_p)).ask(call)
            case calls.ReadJournal():
                pages: list[list[calls.JournalPart]] = await self._ask_all(call)
                return [page for each in pages for page in each]
        raise TypeError(f"{type(call).__name__} is not a call for the coordinator")

    # --- Portions ------------------------------------------------------------------------------------------------

    async def join(self, number: int, end: PortionEnd) -> None:
        """Begin to call a portion: one that has just been opened, and serves nobody yet."""
        async with self._rows:
            joined: calls.Joined = await end.ask(calls.Join(self._store.tenants.all(), self._next_version()))
            for tenant, used in joined.used.items():
                self._parts[tenant][number] = used
            for each in [each for each, begun in self._transfers.items() if begun.source == number]:
                if each not in joined.unfinished:
                    await self._end_transfer(calls.EndTransfer(each, NOTHING))
            self._ends[number] = end

    def leave(self, number: int) -> None:
        """Call a portion no more, because its process has ended."""
        self._ends.pop(number, None)

    def _end(self, number: int) -> PortionEnd:
        end = self._ends.get(number)
        if end is None:
            raise StoreUnavailable(f"store process {number + 1} is being restarted: try again")
        return end

    async def _ask_all(self, call: PortionCall) -> list[Any]:
        """Return the results of all portions, in their order."""
        ends = [self._end(number) for number in range(self._count)]
        return await gather([end.ask(call) for end in ends])

    def _portion_of(self, p: bytes) -> int:
        return portion_of(keys.shard_of(p, self._store.layout.shards), self._count)

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    # --- Queues --------------------------------------------------------------------------------------------------

    async def _find(self, ref: QueueRef) -> tuple[int, QueueRow] | None:
        """Return the portion and the row of a queue."""
        rows: list[QueueRow | None] = await self._ask_all(calls.FindRow(ref))
        return next(((number, row) for number, row in enumerate(rows) if row is not None), None)

    async def _locate(self, ref: QueueRef, *, stale: int | None) -> calls.Located:
        store = self._store
        if store.has_queue(ref):
            return calls.Located(0, True)
        known = store.elsewhere.get(ref)
        if known is not None and known != stale:
            return calls.Located(known, True)
        found = await self._find(ref)
        if found is not None:
            self._note_elsewhere(ref, found[0])
            return calls.Located(found[0], True)
        store.elsewhere.pop(ref, None)
        assigned = self._assigned.get(ref)
        return calls.Located(0 if assigned is None or assigned.portion == stale else assigned.portion, False)

    def _note_elsewhere(self, ref: QueueRef, number: int) -> None:
        elsewhere = self._store.elsewhere
        if number == 0:
            elsewhere.pop(ref, None)
            return
        if len(elsewhere) >= _MAX_ELSEWHERE:
            elsewhere.clear()
        elsewhere[ref] = number

    async def _assign(self, ref: QueueRef) -> int:
        """Return the portion of a queue. Choose that of a missing one, and let it be created there."""
        async with self._assigning[ref.tenant]:
            if (found := await self._find(ref)) is not None:
                self._note_elsewhere(ref, found[0])
                return found[0]
            if (assigned := self._assigned.get(ref)) is not None:
                # Its process may have been replaced since, and know nothing of it.
                await self._end(assigned.portion).ask(calls.Assign(ref, *assigned[1:]))
                return assigned.portion
            tenant = await self._require_tenant(ref.tenant)
            await self._check_room(tenant)
            queue_id = await self._next_queue_id(tenant)
            number = self._portion_of(keys.prefix(tenant.tenant_id, queue_id))
            self._highest[tenant.tenant_id] = queue_id
            self._assigned[ref] = _Assigned(number, tenant, queue_id)
            await self._end(number).ask(calls.Assign(ref, tenant, queue_id))
            return number

    async def _require_tenant(self, name: str) -> TenantRow:
        async with self._rows:
            row = self._store.tenants.get(name)
            return row or await self._directory.put_tenant_here(name, TenantConfig())

    @property
    def _directory(self) -> PortionDirectory:
        return cast(PortionDirectory, self._store.directory)

    async def _check_room(self, tenant: TenantRow) -> None:
        """Raise `OverQuota` if the tenant may not have another queue."""
        quotas, name = tenant.config.quotas, tenant.tenant
        if quotas.max_queues is None:
            return
        if self._most_queues.get(name, quotas.max_queues) >= quotas.max_queues:
            # Queues that were assigned and not created must neither count nor be created after the count.
            await self._ask_all(calls.Unassign(name))
            for ref in [ref for ref in self._assigned if ref.tenant == name]:
                del self._assigned[ref]
            self._most_queues[name] = sum(await self._ask_all(calls.CountQueues(tenant)))
        check_room_for_queue(name, quotas, self._most_queues[name])
        self._most_queues[name] += 1

    async def _next_queue_id(self, tenant: TenantRow) -> int:
        highest = self._highest.get(tenant.tenant_id)
        if highest is None:
            highest = max(await self._ask_all(calls.HighestQueueId(tenant)))
        return highest + 1

    def _note_created(self, ref: QueueRef, number: int) -> None:
        self._assigned.pop(ref, None)
        if number != 0:
            self._note_elsewhere(ref, number)
            # Claims that wait for the missing queue here are misplaced now.
            self._store.announce_ready(ref)

    # --- Tenants -------------------------------------------------------------------------------------------------

    async def _put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        async with self._rows, self._dividing[tenant]:
            row = await self._directory.put_tenant_here(tenant, config)
            learn = calls.LearnTenant(row, self._next_version())
            for number, end in list(self._ends.items()):
                try:
                    self._parts[tenant][number] = await end.ask(learn)
                except StoreUnavailable:
                    if number == 0:
                        raise
                    # It gets the row when it joins again.
                    self.leave(number)
                    self.on_silence(number)
            return row

    # --- Quotas --------------------------------------------------------------------------------------------------

    async def _grant(self, call: calls.GrantMore) -> calls.Granted:
        tenant, number = call.tenant, call.portion
        async with self._dividing[tenant]:
            self._end(number)  # it must have joined
            part = self._fit(tenant, number, call.needed)
            if part is None:
                await self._take_back(tenant, but=number)
                part = self._fit(tenant, number, call.needed)
            if part is None:
                # The part noted for it may be more than it has: messages of it have moved to another portion.
                await self._take_back(tenant)
                part = self._fit(tenant, number, call.needed)
            others = self._taken(tenant, but=number)
            if part is not None:
                self._parts[tenant][number] = part
            return calls.Granted(part, self._next_version(), others)

    def _fit(self, tenant: str, number: int, needed: Amount) -> Amount | None:
        """Return the part that a portion can have, with room to spare if there is plenty; None if it cannot have
        enough."""
        quotas, others = self._store.tenants.config(tenant).quotas, self._taken(tenant, but=number)
        # Never less than before, because the portion may have used it since.
        least = needed.or_more(self._parts[tenant].get(number, NOTHING))
        spare = least.plus(_SPARE)
        if _is_within(others.plus(spare).plus(spare), quotas):
            return spare
        return least if _is_within(others.plus(least), quotas) else None

    def _taken(self, tenant: str, but: int | None = None) -> Amount:
        """Return the parts of all portions but one, and the messages in transfers."""
        taken = NOTHING
        for number, part in self._parts[tenant].items():
            if number != but:
                taken = taken.plus(part)
        for transfer in self._transfers.values():
            if transfer.tenant == tenant:
                taken = taken.plus(transfer.amount)
        return taken

    async def _take_back(self, tenant: str, but: int | None = None) -> None:
        """Lower the parts of portions to what they use. A portion that cannot be reached keeps its part."""
        for number, end in list(self._ends.items()):
            if number == but:
                continue
            try:
                self._parts[tenant][number] = await end.ask(calls.TakeBack(tenant, self._next_version()))
            except StoreUnavailable:
                continue

    # --- Transfers -----------------------------------------------------------------------------------------------

    async def _begin_transfer(self, call: calls.BeginTransfer) -> calls.Announced:
        found = await self._find(call.target)
        if found is None:
            raise no_such_queue(call.target)
        number, row = found
        if row.drain_until is not None:
            raise being_deleted(call.target)
        tenant = call.target.tenant
        assert self._moving is not None
        async with self._dividing[tenant]:
            if tenant != call.source.tenant:
                await self._require_room(tenant, call)
            await self._moving.enter()
            self._last_transfer += 1
            self._transfers[self._last_transfer] = _Transfer(call.portion, number, tenant, call.amount)
            return calls.Announced(self._last_transfer, keys.prefix(row.tenant_id, row.queue_id))

    async def _require_room(self, tenant: str, call: calls.BeginTransfer) -> None:
        """Raise `OverQuota` or `PayloadTooLarge` if another tenant may not keep the messages."""
        quotas = self._store.tenants.config(tenant).quotas
        messages, size = call.amount
        sizes = [call.largest, size - call.largest, *[0] * max(0, messages - 2)][:messages]
        if not _is_within(self._taken(tenant).plus(call.amount), quotas):
            await self._take_back(tenant)
        taken = self._taken(tenant)
        check_quotas(tenant, quotas, taken.messages, taken.bytes, sizes)

    def close(self) -> None:
        """Let a backup begin, although a move has not ended: the next opening of the store ends it."""
        if self._moving is not None:
            self._moving.leave()

    async def _end_transfer(self, call: calls.EndTransfer) -> None:
        ended = self._transfers.pop(call.number, None)
        if ended is not None:
            parts = self._parts[ended.tenant]
            parts[ended.target] = parts.get(ended.target, NOTHING).plus(call.arrived)
        if not self._transfers and self._moving is not None:
            self._moving.leave()


async def gather(works: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines together, and return their results once all have ended. Raise the first error."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _is_within(amount: Amount, quotas: Quotas) -> bool:
    return (quotas.max_messages is None or amount.messages <= quotas.max_messages) and (
        quotas.max_bytes is None or amount.bytes <= quotas.max_bytes
    )
