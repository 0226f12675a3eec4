"""The orders in which one queue's messages are looked for, kept in memory: by delivery, by group, by what ends when."""

from dataclasses import dataclass, field

from sortedcontainers import SortedDict, SortedList

from holdfast.model.claims import group_head, turn_head
from holdfast.model.lifecycle import Life
from holdfast.model.message import State

LAST_ID = 1 << 64

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


class Orders:
    """`arrange` and `disarrange` are the only ways to alter them: a message is taken out as it was put in."""

    def __init__(self) -> None:
        # What a claim walks: per priority, (visible_at, id) of each Ready message; of a group, its head alone.
        self.levels: SortedDict[int, SortedList[tuple[int, int]]] = SortedDict()
        self.groups: dict[str, Group] = {}
        # (when, id): leases' ends, TTLs' ends of what is Ready, the end of keeping what Succeeded.
        self.leases: SortedList[tuple[int, int]] = SortedList()
        self.ttls: SortedList[tuple[int, int]] = SortedList()
        self.kept: SortedList[tuple[int, int]] = SortedList()

    def arrange(self, id: int, life: Life, group_name: str | None, lease_ends_at: int) -> None:
        """`lease_ends_at`: of a message in flight."""
        group = None if group_name is None else self.groups.setdefault(group_name, Group())
        match life.state:
            case State.READY:
                if life.expires_at is not None:
                    self.ttls.add((life.expires_at, id))
                if group is None:
                    self._show(life.priority, life.visible_at, id)
                else:
                    group.ready[id] = life.priority, life.visible_at, id
            case State.IN_FLIGHT:
                self.leases.add((lease_ends_at, id))
                if group is not None:
                    group.in_flight.add(id)
            case State.SUCCEEDED:
                self.kept.add((life.keep_until or 0, id))
            case State.FAILED:
                pass
        self._show_head(group_name, group)

    def disarrange(self, id: int, life: Life, group_name: str | None, lease_ends_at: int) -> None:
        group = None if group_name is None else self.groups.setdefault(group_name, Group())
        match life.state:
            case State.READY:
                if life.expires_at is not None:
                    self.ttls.remove((life.expires_at, id))
                if group is None:
                    self._hide(life.priority, life.visible_at, id)
                else:
                    del group.ready[id]
            case State.IN_FLIGHT:
                self.leases.remove((lease_ends_at, id))
                if group is not None:
                    group.in_flight.remove(id)
            case State.SUCCEEDED:
                self.kept.remove((life.keep_until or 0, id))
            case State.FAILED:
                pass
        self._show_head(group_name, group)

    def next_at(self) -> int | None:
        """When a claim may next find something; in the past if it would now."""
        soonest = [level[0][0] for level in self.levels.values()]
        if self.leases:
            soonest.append(self.leases[0][0])
        if self.groups and self.ttls:
            # The end of a head that is not due yet frees its group.
            soonest.append(self.ttls[0][0])
        return min(soonest, default=None)

    def _show_head(self, name: str | None, group: Group | None) -> None:
        """Keep exactly the head of a group in the queue's order, and nothing of it while a batch of it is out."""
        if name is None or group is None:
            return
        head = group_head(is_busy=bool(group.in_flight), first=group.first)
        hidden, shown = turn_head(group.shown, head)
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
        if not level:
            del self.levels[priority]
