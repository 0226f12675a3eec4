"""Turns for tenants: deficit round robin by weight (SPEC 7.3)."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

# Costs are whole numbers of this unit's parts: a message costs one unit, and so does each 4 KiB.
UNIT = 4_096


def cost_of(messages: int, size: int) -> int:
    return messages * UNIT + size


@dataclass(slots=True)
class _Lane(Generic[T]):
    weight: int
    # Below zero after a turn that cost more than the tenant had saved up.
    deficit: int = 0
    items: deque[T] = field(default_factory=deque)


class FairTurns(Generic[T]):
    """Items of many tenants, taken so that each tenant with work waiting is served by its weight.

    A turn's cost is known only after it was served: so a tenant is served while its deficit is not negative, pays
    after, and waits for as many rounds as it overdrew. Who leaves still owes while the others wait: else coming back
    with one item at a time would be free.
    """

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._weight_of = weight_of
        self._lanes: OrderedDict[str, _Lane[T]] = OrderedDict()
        self._owed: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(len(lane.items) for lane in self._lanes.values())

    def push(self, tenant: str, item: T) -> None:
        lane = self._lanes.get(tenant)
        if lane is None:
            lane = self._lanes[tenant] = _Lane(self._weight_of(tenant), self._owed.pop(tenant, 0))
        lane.items.append(item)

    def pop(self) -> tuple[str, T] | None:
        """Whose turn it is, and what for; `charge` ends the turn."""
        tenant = self._next_tenant()
        return None if tenant is None else (tenant, self._lanes[tenant].items.popleft())

    def charge(self, tenant: str, cost: int) -> None:
        """The tenant pays for its turn and goes behind the others."""
        lane = self._lanes[tenant]
        lane.deficit -= cost
        if lane.items:
            self._lanes.move_to_end(tenant)
            return
        del self._lanes[tenant]
        if not self._lanes:
            self._owed.clear()
        elif lane.deficit < 0:
            self._owed[tenant] = lane.deficit

    def _next_tenant(self) -> str | None:
        waiting = [(tenant, lane) for tenant, lane in self._lanes.items() if lane.items]
        if not waiting:
            return None
        for tenant, lane in waiting:
            if lane.deficit >= 0:
                return tenant
        # All are overdrawn: let as many rounds pass at once as it takes for one of them to be even.
        self._pass_rounds(min(-(lane.deficit // lane.weight) for _, lane in waiting))
        return next(tenant for tenant, lane in waiting if lane.deficit >= 0)

    def _pass_rounds(self, rounds: int) -> None:
        for lane in self._lanes.values():
            lane.deficit += rounds * lane.weight
        for tenant in list(self._owed):
            self._owed[tenant] += rounds * self._weight_of(tenant)
            if self._owed[tenant] >= 0:
                del self._owed[tenant]
