"""The tenants as a portion knows them: copies of their rows, its parts of quotas, and the queues assigned to it."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas, TenantConfig
from holdfast.stores.logic.quotas import check_quotas
from holdfast.stores.rocks.directory.part_shortage import PartShortage
from holdfast.stores.rocks.directory.tenants import Tenants
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.portions.calls import NOTHING, Amount, Granted, GrantMore, PortionEnd
from holdfast.stores.rocks.portions.misplaced import misplaced
from holdfast.stores.values import TenantRow


class PartExceeded(PartShortage):
    """A portion's part of a tenant's quotas is too small for messages of these sizes."""

    def __init__(
        self,
        tenant: str,
        obtain: Callable[["PartExceeded"], Awaitable[None]],
        needed: Amount,
        used: Amount,
        sizes: list[int],
    ) -> None:
        super().__init__(tenant, cast(Callable[[PartShortage], Awaitable[None]], obtain))
        self.needed = needed
        self.used = used
        self.sizes = sizes


class PortionTenants(Tenants):
    """The tenants of a portion. Only the portion with the first shard has their rows on disk."""

    def __init__(self, engine: Engine, portion: int, coordinator: PortionEnd) -> None:
        super().__init__(engine)
        self._portion = portion
        self._coordinator = coordinator
        # The parts of the quotas, by tenant, and the version of the coordinator's last word on each.
        self._parts: dict[str, Amount] = {}
        self._versions: dict[str, int] = {}
        # The numbers of queues that were assigned here and have not been created yet.
        self._assigned: dict[QueueRef, int] = {}
        # True once the rows are those of the coordinator. Until then no quota is known.
        self.has_joined = False

    def continue_from(self, earlier: "PortionTenants") -> None:
        """Take over the rows and assigned queues of the store before it was reopened. What it had of quotas beyond what
        is used is given up."""
        for row in earlier._rows.values():
            self._add(row)
        self._assigned = earlier._assigned
        self._versions = earlier._versions
        self.has_joined = earlier.has_joined

    # --- Rows --------------------------------------------------------------------------------------------------------

    def join(self, rows: Sequence[TenantRow], version: int) -> dict[str, Amount]:
        """Replace all rows. Return what is used of the quotas of each tenant that has some."""
        for row in rows:
            self._add(row)
        self.has_joined = True
        return {name: self.take_back(name, version) for name in sorted(self._limited)}

    def learn(self, row: TenantRow, version: int) -> Amount:
        """Replace a row. Return what is used, which is the portion's part of the quotas now."""
        self._add(row)
        return self.take_back(row.tenant, version)

    def put(self, name: str, config: TenantConfig) -> TenantRow:
        """Add a tenant, or replace its configuration; see `Tenants.put`. Only for the coordinator's portion."""
        row = super().put(name, config)
        # The coordinator waits for the disk before any portion gets to know the tenant.
        self._fresh.discard(name)
        return row

    async def require_on_disk(self, name: str) -> None:
        """Do nothing: a queue is assigned here only once its tenant is on disk."""

    # --- Placed queues -----------------------------------------------------------------------------------------------

    def assign(self, ref: QueueRef, tenant: TenantRow, queue_id: int) -> None:
        """Let the queue be created here with this number."""
        if ref.tenant not in self._rows:
            self._add(tenant)
        self._assigned[ref] = queue_id

    def unassign(self, tenant: str) -> None:
        """Forget the assigned queues of a tenant."""
        for ref in [ref for ref in self._assigned if ref.tenant == tenant]:
            del self._assigned[ref]

    def is_assigned(self, ref: QueueRef) -> bool:
        """Return whether the queue may be created here."""
        return ref in self._assigned

    def next_queue_id(self, ref: QueueRef) -> int:
        """Return the number of a queue that was assigned here. Raise the error of a misplaced call for any other."""
        queue_id = self._assigned.get(ref)
        if queue_id is None:
            raise misplaced(ref)
        return queue_id

    def take_queue_id(self, ref: QueueRef) -> int:
        """Return the number of a queue that is created."""
        queue_id = self.next_queue_id(ref)
        del self._assigned[ref]
        return queue_id

    def reserve_queue_id(self, ref: QueueRef) -> int:
        """Return the number of a queue that was assigned here. It stays assigned until it is created."""
        return self.next_queue_id(ref)

    def release_queue_id(self, ref: QueueRef) -> None:
        """Do nothing: the queue stays assigned here."""

    def note_queue_removed(self, tenant: str) -> None:
        """Do nothing: the coordinator counts the queues when it has to."""

    def check_room_for_queue(self, tenant: str) -> None:
        """Do nothing: the coordinator has checked it when it assigned the queue."""

    # --- Quotas ------------------------------------------------------------------------------------------------------

    def has_quotas(self, tenant: str) -> bool:
        """Return whether the tenant has a quota on messages or bytes."""
        return not self.has_joined or tenant in self._limited

    def check_quotas(
        self, tenant: str, sizes: list[int], uploading: Iterable[int] = (), freed: Sequence[int] = ()
    ) -> None:
        """Raise `PartExceeded` if new messages of these sizes exceed this portion's part of the quotas; otherwise as
        `Tenants.check_quotas`."""
        if not self.has_joined:
            raise StoreUnavailable("this store process is starting: try again")
        quotas = self.config(tenant).quotas
        check_quotas(tenant, Quotas(max_message_bytes=quotas.max_message_bytes), 0, 0, sizes)
        if not quotas.limits_totals or not sizes:
            return
        waiting = list(uploading)
        used = self._used(tenant).plus(Amount(len(waiting), sum(waiting))).minus(Amount(len(freed), sum(freed)))
        needed = used.plus(Amount(len(sizes), sum(sizes)))
        part = self._parts.get(tenant, NOTHING)
        if (quotas.max_messages is not None and needed.messages > part.messages) or (
            quotas.max_bytes is not None and needed.bytes > part.bytes
        ):
            raise PartExceeded(tenant, self._obtain, needed, used, sizes)

    async def _obtain(self, short: PartExceeded) -> None:
        tenant = short.tenant
        granted: Granted = await self._coordinator.ask(GrantMore(self._portion, tenant, short.needed))
        if granted.part is None:
            before = short.used.plus(granted.others)
            check_quotas(tenant, self.config(tenant).quotas, before.messages, before.bytes, short.sizes)
            raise OverQuota(f"tenant {tenant} would exceed one of its quotas", quota="max_messages")
        if granted.version > self._versions.get(tenant, 0):
            # An older grant has been taken back meanwhile.
            self._versions[tenant] = granted.version
            self._parts[tenant] = self._parts.get(tenant, NOTHING).or_more(granted.part)

    def take_back(self, tenant: str, version: int) -> Amount:
        """Lower this portion's part to what is used, and return that."""
        used = self._used(tenant)
        if version > self._versions.get(tenant, 0):
            self._versions[tenant] = version
            self._parts[tenant] = used
        return used

    def change_part(self, tenant: str, *, left: Amount = NOTHING, arrived: Amount = NOTHING) -> None:
        """Change this portion's part by messages that have gone to another portion, or have come from one."""
        if tenant in self._limited:
            self._parts[tenant] = self._parts.get(tenant, NOTHING).minus(left).plus(arrived)

    def _used(self, tenant: str) -> Amount:
        totals = self._count_messages(tenant)
        return Amount(totals.messages, totals.bytes)
