"""What a process knows of one queue's messages, and the orders in which it looks for them.

It is a window on what is stored: the first so many by id. Everything here was read or written by this process, and may
have been changed by another since; a claim finds that out when it writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sortedcontainers import SortedList

from holdfast.stores.indexes.queue_orders import LAST_ID, QueueOrders
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import ReadCasDocument
from holdfast.stores.objects.documents.document_format import MessageBody


@dataclass(slots=True)
class IndexedMessage:
    """A message as this process knows it. Taken: a call is writing it."""

    held: ReadCasDocument
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


class MessageIndex(QueueOrders):
    """`put` and `drop` are the only ways to alter it."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, IndexedMessage] = {}
        # When each lease may be taken to have run out; kept here, for the granter's clock may be another's.
        self._lease_ends: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, entry: IndexedMessage, lease_ends_at: int) -> None:
        self.drop(entry.id)
        self.entries[entry.id] = entry
        self._lease_ends[entry.id] = lease_ends_at
        self.add_to_orders(entry.id, entry.body.life, entry.body.group, lease_ends_at)

    def drop(self, id: int) -> None:
        entry = self.entries.pop(id, None)
        if entry is not None:
            self.remove_from_orders(id, entry.body.life, entry.body.group, self._lease_ends.pop(id))

    # --- What a claim looks at ---------------------------------------------------------------------------------

    def due(self, now_ms: int) -> Iterator[IndexedMessage]:
        """Heads and single messages that are due, in the order of delivery; what is taken is passed over. Nothing may
        be put or dropped meanwhile, but taken."""
        for level in self.levels.values():
            for _, id in level.irange(maximum=(now_ms, LAST_ID)):
                if not self.entries[id].is_taken:
                    yield self.entries[id]

    def count_due(self, now_ms: int, enough: int) -> int:
        """Up to `enough`."""
        counted = 0
        for level in self.levels.values():
            if level and level[0][0] <= now_ms:
                counted += level.bisect_right((now_ms, LAST_ID))
                if counted >= enough:
                    return enough
        return counted

    def group_of(self, entry: IndexedMessage) -> list[IndexedMessage]:
        """The Ready messages of its group, in order of id."""
        group = self.groups.get(entry.body.group or "")
        return [] if group is None else [self.entries[id] for id in group.ready]

    def next_deadline(self) -> int | None:
        return min((ends[0][0] for ends in (self.leases, self.ttls, self.kept) if ends), default=None)

    def ended(self, ends: "SortedList[tuple[int, int]]", limit: int, now_ms: int) -> list[IndexedMessage]:
        """Of one of the lists of ends: those that have come, and that nobody is writing."""
        found: list[IndexedMessage] = []
        for at_ms, id in ends:
            if at_ms > now_ms or len(found) >= limit:
                break
            if not self.entries[id].is_taken:
                found.append(self.entries[id])
        return found
