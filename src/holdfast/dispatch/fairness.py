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
        # Items waiting; kept, for admission looks at it on every enqueue.
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def waiting(self, tenant: str) -> int:
        lane = self._lanes.get(tenant)
        return 0 if lane is None else len(lane.items)

    def push(self, tenant: str, item: T) -> None:
        lane = self._lanes.get(tenant)
        if lane is None:
            lane = self._lanes[tenant] = _Lane(self._weight_of(tenant), self._owed.pop(tenant, 0))
        lane.items.append(item)
        self.size += 1

    def pop(self) -> tuple[str, T] | None:
        """Whose turn it is, and what for; `charge` ends the turn."""
        tenant = self._next_tenant()
        if tenant is None:
            return None
        self.size -= 1
        return tenant, self._lanes[tenant].items.popleft()

    def charge(self, tenant: str, cost: int) -> None:
        """The tenant pays for its turn and goes behind the others."""
        lane = self._lanes[tenant]
        lane.deficit -= cost
        if lane.items:
            self._lanes.move_to_end(tenant)
        else:
            self._close_lane(tenant, lane)

    def leave(self, tenant: str, item: T) -> bool:
        """Take an item back before its turn; false if it is not there any more."""
        lane = self._lanes.get(tenant)
        if lane is None:
            return False
        try:
            lane.items.remove(item)
        except ValueError:
            return False
        self.size -= 1
        if not lane.items:
            self._close_lane(tenant, lane)
        return True

    def _close_lane(self, tenant: str, lane: _Lane[T]) -> None:
        del self._lanes[tenant]
        if not self._lanes:
            self._owed.clear()
        elif lane.deficit < 0:
            self._owed[tenant] = lane.deficit

    def _next_tenant(self) -> str | None:
        """The first that is not overdrawn; if all are, let as many rounds pass at once as make one of them even."""
        first, fewest = None, 0
        for tenant, lane in self._lanes.items():
            if not lane.items:
                continue  # it is being served
            if lane.deficit >= 0:
                return tenant
            rounds = -(lane.deficit // lane.weight)
            if first is None or rounds < fewest:
                first, fewest = tenant, rounds
        if first is not None:
            self._pass_rounds(fewest)
        return first

    def _pass_rounds(self, rounds: int) -> None:
        for lane in self._lanes.values():
            lane.deficit += rounds * lane.weight
        for tenant in list(self._owed):
            self._owed[tenant] += rounds * self._weight_of(tenant)
            if self._owed[tenant] >= 0:
                del self._owed[tenant]
