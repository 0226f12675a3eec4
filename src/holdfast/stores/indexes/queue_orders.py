"""The in-memory indexes of one queue's messages: by order of delivery, by group, and by the end of leases and TTLs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sortedcontainers import SortedDict, SortedList

from holdfast.model.message import State
from holdfast.model.rules.claims import group_head, replace_head
from holdfast.model.rules.lifecycle import Life

# Above every id: the upper bound of a search for all entries up to an instant.
LAST_ID = 1 << 64

# Module constants, because Python 3.11 looks up enum members slowly and every change of a message compares several.
_READY, _IN_FLIGHT, _SUCCEEDED = State.READY, State.IN_FLIGHT, State.SUCCEEDED

# The key by which claims order the messages of a queue: priority, visible_at, id.
OrderKey = tuple[int, int, int]


@dataclass(slots=True)
class Group:
    """A FIFO group: its Ready messages by id, its messages in flight, and its head."""

    ready: "SortedDict[int, OrderKey]" = field(default_factory=SortedDict)
    in_flight: set[int] = field(default_factory=set)
    # The one message of the group that is in the queue's order of delivery; None while a message is in flight.
    shown: OrderKey | None = None

    def first(self) -> OrderKey | None:
        """Return the key of the oldest Ready message; None if no message is Ready."""
        return self.ready.peekitem(0)[1] if self.ready else None


class QueueOrders:
    """The sorted indexes of one queue's messages.

    Change them only with `add_to_orders` and `remove_from_orders`. A message is removed with the same life with which
    it was added.
    """

    def __init__(self) -> None:
        # The order of delivery: for each priority, (visible_at, id) of each Ready message. A group is represented only
        # by its head. At most one level is empty.
        self.levels: SortedDict[int, SortedList[tuple[int, int]]] = SortedDict()
        self.groups: dict[str, Group] = {}
        # (instant, id): the ends of leases, the ends of the TTLs of Ready messages, and the instants at which the
        # records of Succeeded messages are deleted.
        self.leases: SortedList[tuple[int, int]] = SortedList()
        self.ttls: SortedList[tuple[int, int]] = SortedList()
        self.kept: SortedList[tuple[int, int]] = SortedList()

    def add_to_orders(self, id: int, life: Life, group_name: str | None, lease_ends_at: int) -> None:
        """Add a message to the indexes. A Failed message is in none of them.

        `lease_ends_at` is the end of its lease, and is ignored unless the message is in flight.
        """
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

    def remove_from_orders(self, id: int, life: Life, group_name: str | None, lease_ends_at: int) -> None:
        """Remove a message. The arguments are the same as when it was added."""
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
        """Return the instant from which a claim may find something, which may have passed; None: there is none."""
        # The order of the levels does not matter here, and SortedDict's own sorted view costs more than all the rest.
        lists = [self.leases, *dict.values(self.levels)]  # type: ignore[arg-type]  # mypy infers no arguments for dict
        if self.groups:
            # When the TTL of a head ends before it is due, the next message of its group becomes the head.
            lists.append(self.ttls)
        return earliest(lists)

    def _show_head(self, name: str, group: Group) -> None:
        """Put the group's current head into the order of delivery, in place of the previous one; none while messages of
        the group are in flight."""
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
        # The last level is kept even if it is empty, because most queues use one priority and run empty often.
        if not level and len(self.levels) > 1:
            del self.levels[priority]


def earliest(lists: "Iterable[SortedList[tuple[int, Any]]]") -> int | None:
    """Return the earliest instant in lists of (instant, item); None if all are empty."""
    soonest: int | None = None
    for each in lists:
        if each:
            at_ms = each[0][0]
            if soonest is None or at_ms < soonest:
                soonest = at_ms
    return soonest
