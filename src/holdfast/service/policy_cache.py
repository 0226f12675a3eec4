"""A cache of the limits and weights of tenants and queues, and its refresh on stores that several servers share."""

import math
from typing import cast

from holdfast.background import Backoff
from holdfast.clock import Clock, Timer
from holdfast.model.limits import has_rates, is_limited
from holdfast.model.names import QueueRef
from holdfast.model.policy import Limits, QueuePolicy
from holdfast.runtime import Runtime
from holdfast.stores.contract import LimitedQueueDirectory, Store
from holdfast.stores.logic.results import no_such_queue
from holdfast.stores.values import QueueRow, TenantRow

# The time between two passes of the refresher.
REFRESH_MS = 5_000
# The number of passes after which the policies of all queues have been read.
_PASSES = 6


class PolicyCache:
    """A cache of the limits and weights that differ from the defaults, so that admission needs no call of the store.

    It is loaded at the start and updated at each change.
    """

    def __init__(self, store: Store, clock: Clock, *, auto_create: bool) -> None:
        self._store = store
        self._clock = clock
        self.auto_create = auto_create
        # The weights of tenants; other tenants have the default, 1.
        self._weights: dict[str, int] = {}
        # The limits of tenants with rates, and the policies of queues with rates or caps. Admission holds these
        # dictionaries and reads them for every call, so they are changed in place.
        self.tenant_limits: dict[str, Limits] = {}
        self.queue_limits: dict[QueueRef, QueuePolicy] = {}

    async def load(self) -> None:
        """Read all limits and weights from the store."""
        tenants = await self.load_tenants()
        if self._store.capabilities.lists_limited_queues:
            await self._load_limited()
            return
        for tenant in tenants:
            await self.load_queues(tenant)

    async def load_tenants(self) -> list[str]:
        """Read the limits and weights of all tenants, and return the names of the tenants."""
        tenants = await self._store.directory.list_tenants()
        for tenant in tenants:
            self.remember_tenant(tenant)
        return [tenant.tenant for tenant in tenants]

    async def load_queues(self, tenant: str) -> None:
        """Read the limits of the queues of a tenant."""
        for queue in await self._store.directory.list_queues(tenant):
            self.remember_queue(queue)

    async def _load_limited(self) -> None:
        """Read the queues that have limits. The others are left out, because a store may have very many."""
        queues = await cast(LimitedQueueDirectory, self._store.directory).list_limited()
        # Forget limits that are gone: a store that was reopened may have lost the change that set them.
        for ref in self.queue_limits.keys() - {queue.ref for queue in queues}:
            del self.queue_limits[ref]
        for queue in queues:
            self.remember_queue(queue)

    def remember_tenant(self, tenant: TenantRow) -> None:
        """Update the limits and the weight of a tenant."""
        name, config = tenant.tenant, tenant.config
        if config.weight != 1:
            self._weights[name] = config.weight
        else:
            self._weights.pop(name, None)
        if has_rates(config.limits):
            self.tenant_limits[name] = config.limits
        else:
            self.tenant_limits.pop(name, None)

    def remember_queue(self, queue: QueueRow) -> None:
        """Update the limits of a queue."""
        # A queue that is being deleted is refused by the store. A later queue of the same name has limits of its own.
        if is_limited(queue.policy) and queue.drain_until is None:
            self.queue_limits[queue.ref] = queue.policy
        else:
            self.queue_limits.pop(queue.ref, None)

    def weight_of(self, tenant: str) -> int:
        """Return the weight of a tenant."""
        return self._weights.get(tenant, 1)

    async def require(self, ref: QueueRef) -> QueueRow:
        """Return the row of a queue from the store. Raise `QueueNotFound`."""
        row = await self._store.directory.find_queue(ref)
        if row is None:
            raise no_such_queue(ref)
        return row

    async def require_or_create(self, ref: QueueRef) -> QueueRow:
        """Return the row of a queue, creating the queue if it is missing and `auto_create` is set."""
        if self.auto_create:
            return await self._store.directory.create_queue(ref, self._clock.now_ms())
        return await self.require(ref)


class Refresher:
    """A background part that reads the changes of other servers into a `PolicyCache`.

    Each pass reads the configuration of all tenants. The policies of queues are read tenant by tenant over several
    passes, to spread the load of many queues.
    """

    def __init__(self, directory: PolicyCache, runtime: Runtime) -> None:
        self._directory = directory
        self._runtime = runtime
        self._timer: Timer | None = None
        # The tenants whose queues have still to be read in this round.
        self._round: list[str] = []
        self._per_pass = 0
        self._backoff = Backoff("refresh")
        self._is_closed = False

    def start(self, pause_ms: int = REFRESH_MS) -> None:
        """Set the timer of the next pass; each pass then sets the timer of the one after it."""
        at_ms = self._runtime.clock.now_ms() + pause_ms
        self._timer = self._runtime.call_at(at_ms, lambda: self._runtime.spawn(self._refresh()))

    def close(self) -> None:
        """Stop refreshing."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def refresh_once(self) -> int:
        """Run one pass, and return the number of tenants whose queues were read."""
        tenants = await self._directory.load_tenants()
        if not self._round:
            self._round = tenants
            self._per_pass = math.ceil(len(tenants) / _PASSES)
        due, self._round = self._round[: self._per_pass], self._round[self._per_pass :]
        for tenant in due:
            await self._directory.load_queues(tenant)
        return len(due)

    async def _refresh(self) -> None:
        pause_ms = REFRESH_MS
        try:
            await self.refresh_once()
        except Exception as error:
            if not self._is_closed:
                pause_ms = self._backoff.failed(error)
        else:
            self._backoff.succeeded()
        if not self._is_closed:
            self.start(pause_ms)
