"""What a process knows of one queue's messages, and the orders in which it looks for them.

It is a window on what is stored: the first so many by id. Everything here was read or written by this process, and may
have been changed by another since; a claim finds that out when it writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sortedcontainers import SortedDict, SortedList

from holdfast.model.message import State
from holdfast.stores.objects import layout
from holdfast.stores.objects.documents import MessageBody
from holdfast.stores.objects.sheets import Held

_LAST_ID = 1 << 64

Place = tuple[int, int, int]


@dataclass(slots=True)
class Entry:
    """A message as this process knows it. Taken: a call is writing it."""

    held: Held
    body: MessageBody
    is_taken: bool = False

    @property
    def id(self) -> int:
        return self.body.id

    @property
    def payload_key(self) -> str:
        return self.body.payload_at or layout.payload_of(self.held.key)

    @property
    def state_key(self) -> str:
        return self.body.state_at or layout.state_of(self.held.key)


@dataclass(slots=True)
class Group:
    ready: "SortedList[int]" = field(default_factory=SortedList)
    in_flight: set[int] = field(default_factory=set)
    shown: Place | None = None


class Index:
    """`put` and `drop` are the only ways to alter it."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        # Per priority, (visible_at, id) of each Ready message; of a group, its head alone.
        self.levels: SortedDict[int, SortedList[tuple[int, int]]] = SortedDict()
        self.groups: dict[str, Group] = {}
        # (when, id): leases' ends, TTLs' ends of what is Ready, the end of keeping what Succeeded.
        self.leases: SortedList[tuple[int, int]] = SortedList()
        self.ttls: SortedList[tuple[int, int]] = SortedList()
        self.kept: SortedList[tuple[int, int]] = SortedList()
        # When each lease may be taken to have run out; kept here, for the granter's clock may be another's.
        self._lease_ends: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, entry: Entry, lease_ends_at: int) -> None:
        self.drop(entry.id)
        self.entries[entry.id] = entry
        body, id = entry.body, entry.id
        life, group = body.life, self._group(body)
        match life.state:
            case State.READY:
                if life.expires_at is not None:
                    self.ttls.add((life.expires_at, id))
                if group is None:
                    self._show(life.priority, life.visible_at, id)
                else:
                    group.ready.add(id)
            case State.IN_FLIGHT:
                self._lease_ends[id] = lease_ends_at
                self.leases.add((lease_ends_at, id))
                if group is not None:
                    group.in_flight.add(id)
            case State.SUCCEEDED:
                self.kept.add((life.keep_until or 0, id))
            case State.FAILED:
                pass
        self._show_head(body, group)

    def drop(self, id: int) -> None:
        entry = self.entries.pop(id, None)
        if entry is None:
            return
        body = entry.body
        life, group = body.life, self._group(body)
        match life.state:
            case State.READY:
                if life.expires_at is not None:
                    self.ttls.remove((life.expires_at, id))
                if group is None:
                    self._hide(life.priority, life.visible_at, id)
                else:
                    group.ready.remove(id)
            case State.IN_FLIGHT:
                self.leases.remove((self._lease_ends.pop(id), id))
                if group is not None:
                    group.in_flight.remove(id)
            case State.SUCCEEDED:
                self.kept.remove((life.keep_until or 0, id))
            case State.FAILED:
                pass
        self._show_head(body, group)

    # --- What a claim looks at ---------------------------------------------------------------------------------

    def due(self, now_ms: int) -> Iterator[Entry]:
        """Heads and single messages that are due, in the order of delivery; what is taken is passed over. Nothing may
        be put or dropped meanwhile, but taken."""
        for level in self.levels.values():
            for _, id in level.irange(maximum=(now_ms, _LAST_ID)):
                if not self.entries[id].is_taken:
                    yield self.entries[id]

    def count_due(self, now_ms: int, enough: int) -> int:
        """Up to `enough`."""
        counted = 0
        for level in self.levels.values():
            if level and level[0][0] <= now_ms:
                counted += level.bisect_right((now_ms, _LAST_ID))
                if counted >= enough:
                    return enough
        return counted

    def group_of(self, entry: Entry) -> list[Entry]:
        """The Ready messages of its group, in order of id."""
        group = self.groups.get(entry.body.group or "")
        return [] if group is None else [self.entries[id] for id in group.ready]

    def next_at(self) -> int | None:
        """When a claim may next find something; in the past if it would now."""
        soonest = [level[0][0] for level in self.levels.values()]
        if self.leases:
            soonest.append(self.leases[0][0])
        if self.groups and self.ttls:
            # The end of a head that is not due yet frees its group.
            soonest.append(self.ttls[0][0])
        return min(soonest, default=None)

    def next_deadline(self) -> int | None:
        return min((ends[0][0] for ends in (self.leases, self.ttls, self.kept) if ends), default=None)

    def ended(self, ends: "SortedList[tuple[int, int]]", limit: int, now_ms: int) -> list[Entry]:
        """Of one of the lists of ends: those that have come, and that nobody is writing."""
        found: list[Entry] = []
        for at_ms, id in ends:
            if at_ms > now_ms or len(found) >= limit:
                break
            if not self.entries[id].is_taken:
                found.append(self.entries[id])
        return found

    # --- Orders ------------------------------------------------------------------------------------------------

    def _group(self, body: MessageBody) -> Group | None:
        return None if body.group is None else self.groups.setdefault(body.group, Group())

    def _show_head(self, body: MessageBody, group: Group | None) -> None:
        if group is None or body.group is None:
            return
        head = None
        if group.ready and not group.in_flight:
            life = self.entries[group.ready[0]].body.life
            head = (life.priority, life.visible_at, group.ready[0])
        if head != group.shown:
            if group.shown is not None:
                self._hide(*group.shown)
            if head is not None:
                self._show(*head)
            group.shown = head
        if not group.ready and not group.in_flight:
            self.groups.pop(body.group, None)

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
