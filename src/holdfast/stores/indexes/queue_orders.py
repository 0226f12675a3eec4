"""The orders in which one queue's messages are looked for, kept in memory: by delivery, by group, by what ends when."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sortedcontainers import SortedDict, SortedList

from holdfast.model.message import State
from holdfast.model.rules.claims import group_head, replace_head
from holdfast.model.rules.lifecycle import Life

LAST_ID = 1 << 64

# Read once: Python 3.11 finds a member in its class by a slow way, and every change of a message compares several.
_READY, _IN_FLIGHT, _SUCCEEDED = State.READY, State.IN_FLIGHT, State.SUCCEEDED

# Where a message stands in its queue: priority, visible_at, id.
Place = tuple[int, int, int]


@dataclass(slots=True)
class Group:
    """A FIFO group: its Ready messages by id, those in flight, and the head that stands in the queue's order."""

    ready: "SortedDict[int, Place]" = field(default_factory=SortedDict)
    in_flight: set[int] = field(default_factory=set)
    shown: Place | None = None

    def first(self) -> Place | None:
        return self.ready.peekitem(0)[1] if self.ready else None


class QueueOrders:
    """`arrange` and `disarrange` are the only ways to alter them: a message is taken out as it was put in."""

    def __init__(self) -> None:
        # The order of claims: per priority, (visible_at, id) of each Ready message; of a group, its head alone. At most
        # one level is empty.
        self.levels: SortedDict[int, SortedList[tuple[int, int]]] = SortedDict()
        self.groups: dict[str, Group] = {}
        # (when, id): leases' ends, TTLs' ends of what is Ready, the end of keeping what Succeeded.
        self.leases: SortedList[tuple[int, int]] = SortedList()
        self.ttls: SortedList[tuple[int, int]] = SortedList()
        self.kept: SortedList[tuple[int, int]] = SortedList()

    def arrange(self, id: int, life: Life, group_name: str | None, lease_ends_at: int) -> None:
        """`lease_ends_at`: of a message in flight. A Failed message stands in none of the orders."""
        group = None if group_name is None else self.groups.setdefault(group_name, Group())
        state = life.state
        if state is _READY:
            if life.expires_at is not None:
                self.ttls.add((life.expires_at, id))
            if group is None:
                self._show(life.priority, life.visible_at, id)
            else:
                group.ready[id] = life.priority, life.visible_at, id
        elif state is _IN_FLIGHT:
            self.leases.add((lease_ends_at, id))
            if group is not None:
                group.in_flight.add(id)
        elif state is _SUCCEEDED:
            self.kept.add((life.keep_until or 0, id))
        if group_name is not None and group is not None:
            self._show_head(group_name, group)

    def disarrange(self, id: int, life: Life, group_name: str | None, lease_ends_at: int) -> None:
        group = None if group_name is None else self.groups.setdefault(group_name, Group())
        state = life.state
        if state is _READY:
            if life.expires_at is not None:
                self.ttls.remove((life.expires_at, id))
            if group is None:
                self._hide(life.priority, life.visible_at, id)
            else:
                del group.ready[id]
        elif state is _IN_FLIGHT:
            self.leases.remove((lease_ends_at, id))
            if group is not None:
                group.in_flight.remove(id)
        elif state is _SUCCEEDED:
            self.kept.remove((life.keep_until or 0, id))
        if group_name is not None and group is not None:
            self._show_head(group_name, group)

    def next_at(self) -> int | None:
        """When a claim may next find something; in the past if it would now."""
        # The dict's own view of the levels: any order will do here, and the sorted view costs more than all the rest.
        lists = [self.leases, *dict.values(self.levels)]  # type: ignore[arg-type]  # mypy infers no arguments for dict
        if self.groups:
            # The end of a head that is not due yet frees its group.
            lists.append(self.ttls)
        return earliest(lists)

    def _show_head(self, name: str, group: Group) -> None:
        """Keep exactly the head of a group in the queue's order, and nothing of it while a batch of it is out."""
        head = group_head(is_busy=bool(group.in_flight), first=group.first)
        hidden, shown = replace_head(group.shown, head)
        if hidden is not None:
            self._hide(*hidden)
        if shown is not None:
            self._show(*shown)
        group.shown = head
        if not group.ready and not group.in_flight:
            self.groups.pop(name, None)

    def _show(self, priority: int, visible_at: int, id: int) -> None:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = SortedList()
        level.add((visible_at, id))

    def _hide(self, priority: int, visible_at: int, id: int) -> None:
        level = self.levels[priority]
        level.remove((visible_at, id))
        # The only level stays, though empty: most queues have one priority, and run empty all the time.
        if not level and len(self.levels) > 1:
            del self.levels[priority]


def earliest(lists: "Iterable[SortedList[tuple[int, Any]]]") -> int | None:
    """Return the earliest instant in lists of (when, what); None if all are empty."""
    soonest: int | None = None
    for each in lists:
        if each:
            at_ms = each[0][0]
            if soonest is None or at_ms < soonest:
                soonest = at_ms
    return soonest
