"""Fair turns between tenants: deficit round robin by weight (SPEC 7.3)."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

# The cost of one message. Each byte costs 1, so 4 KiB of payload cost as much as a message.
UNIT = 4_096


def cost_of(messages: int, size: int) -> int:
    """Return the cost of a turn that served this number of messages and bytes."""
    return messages * UNIT + size


@dataclass(slots=True)
class _TenantItems(Generic[T]):
    """The waiting items of one tenant."""

    weight: int
    # Negative after a turn that cost more than the tenant had.
    deficit: int = 0
    items: deque[T] = field(default_factory=deque)


class FairTurns(Generic[T]):
    """A queue of items of many tenants, served in proportion to the weights of the tenants that have items.

    The cost of a turn is known only after it. So a tenant is served as long as its deficit is not negative, pays
    afterwards, and then waits for enough rounds to make up for its debt. A tenant without items keeps its debt while
    others wait; otherwise a tenant that adds one item at a time would never pay.
    """

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._weight_of = weight_of
        self._tenants: OrderedDict[str, _TenantItems[T]] = OrderedDict()
        self._owed: dict[str, int] = {}
        # The number of waiting items. An attribute, because admission reads it for every enqueue.
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def waiting(self, tenant: str) -> int:
        """Return the number of waiting items of a tenant."""
        tenant_items = self._tenants.get(tenant)
        return 0 if tenant_items is None else len(tenant_items.items)

    def push(self, tenant: str, item: T) -> None:
        """Add an item behind the other items of its tenant."""
        tenant_items = self._tenants.get(tenant)
        if tenant_items is None:
            tenant_items = self._tenants[tenant] = _TenantItems(self._weight_of(tenant), self._owed.pop(tenant, 0))
        tenant_items.items.append(item)
        self.size += 1

    def pop(self) -> tuple[str, T] | None:
        """Return the tenant whose turn it is and its next item, or None if nothing waits. Call `charge` afterwards."""
        tenant = self._next_tenant()
        if tenant is None:
            return None
        self.size -= 1
        return tenant, self._tenants[tenant].items.popleft()

    def charge(self, tenant: str, cost: int) -> None:
        """End a turn: charge its cost to the tenant, and put the tenant behind the others."""
        tenant_items = self._tenants[tenant]
        tenant_items.deficit -= cost
        if tenant_items.items:
            self._tenants.move_to_end(tenant)
        else:
            self._remove_tenant(tenant, tenant_items)

    def remove(self, tenant: str, item: T) -> bool:
        """Remove an item before its turn; return False if it is no longer there."""
        tenant_items = self._tenants.get(tenant)
        if tenant_items is None:
            return False
        try:
            tenant_items.items.remove(item)
        except ValueError:
            return False
        self.size -= 1
        if not tenant_items.items:
            self._remove_tenant(tenant, tenant_items)
        return True

    def _remove_tenant(self, tenant: str, tenant_items: _TenantItems[T]) -> None:
        del self._tenants[tenant]
        if not self._tenants:
            self._owed.clear()
        elif tenant_items.deficit < 0:
            self._owed[tenant] = tenant_items.deficit

    def _next_tenant(self) -> str | None:
        """Return the first tenant without debt. If all have one, skip the rounds until the first of them has none."""
        first, fewest = None, 0
        for tenant, tenant_items in self._tenants.items():
            if not tenant_items.items:
                continue  # its last item is being served
            if tenant_items.deficit >= 0:
                return tenant
            rounds = -(tenant_items.deficit // tenant_items.weight)
            if first is None or rounds < fewest:
                first, fewest = tenant, rounds
        if first is not None:
            self._pass_rounds(fewest)
        return first

    def _pass_rounds(self, rounds: int) -> None:
        for tenant_items in self._tenants.values():
            tenant_items.deficit += rounds * tenant_items.weight
        for tenant in list(self._owed):
            self._owed[tenant] += rounds * self._weight_of(tenant)
            if self._owed[tenant] >= 0:
                del self._owed[tenant]
