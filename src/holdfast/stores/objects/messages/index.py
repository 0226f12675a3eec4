"""Keep a process's known messages of one queue, in the orders in which it looks for them.

The index is a window on the stored messages, the first ones by id. All entries were read or written by this process,
and another process may have changed them since: a claim finds that out when it writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sortedcontainers import SortedList

from holdfast.stores.indexes.queue_orders import LAST_ID, QueueOrders
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import MessageBody
from holdfast.stores.objects.documents.cas_documents import ReadCasDocument


@dataclass(slots=True)
class IndexedMessage:
    """A message as this process knows it. `is_taken` is set while a call writes it."""

    document: ReadCasDocument
    body: MessageBody
    is_taken: bool = False

    @property
    def id(self) -> int:
        """The message's id."""
        return self.body.id

    @property
    def payload_key(self) -> str:
        """The key of its payload."""
        return self.body.payload_key or layout.payload_of(self.document.key)

    @property
    def state_key(self) -> str:
        """The key of its state document."""
        return self.body.state_key or layout.state_of(self.document.key)

    @property
    def side_keys(self) -> set[str]:
        """The keys of payload and state document, if they are objects of their own."""
        keys = set()
        if self.body.has_payload_object:
            keys.add(self.payload_key)
        if self.body.has_state:
            keys.add(self.state_key)
        return keys


class MessageIndex(QueueOrders):
    """The window of one queue. Only `put` and `drop` change it."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, IndexedMessage] = {}
        # Bytes of the payloads that the entries hold.
        self.payload_bytes = 0
        # When each lease counts as ended. Kept here because it depends on who granted the lease: clocks of other
        # processes differ.
        self._lease_ends: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, entry: IndexedMessage, lease_ends_at: int) -> None:
        """Add or replace a message."""
        self.drop(entry.id)
        self.entries[entry.id] = entry
        self.payload_bytes += len(entry.body.payload)
        self._lease_ends[entry.id] = lease_ends_at
        self.add_to_orders(entry.id, entry.body.life, entry.body.group, lease_ends_at)

    def drop(self, id: int) -> None:
        """Remove a message, if it is known."""
        entry = self.entries.pop(id, None)
        if entry is not None:
            self.payload_bytes -= len(entry.body.payload)
            self.remove_from_orders(id, entry.body.life, entry.body.group, self._lease_ends.pop(id))

    # --- Searching ---------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> Iterator[IndexedMessage]:
        """Yield due single messages and heads of groups in the order of delivery, except taken ones. The caller may set
        `is_taken` meanwhile, but not put or drop."""
        for level in self.levels.values():
            for _, id in level.irange(maximum=(now_ms, LAST_ID)):
                if not self.entries[id].is_taken:
                    yield self.entries[id]

    def count_due(self, now_ms: int, enough: int) -> int:
        """Return the number of due messages, counted up to `enough`."""
        counted = 0
        for level in self.levels.values():
            if level and level[0][0] <= now_ms:
                counted += level.bisect_right((now_ms, LAST_ID))
                if counted >= enough:
                    return enough
        return counted

    def group_of(self, entry: IndexedMessage) -> list[IndexedMessage]:
        """Return the Ready messages of the entry's group, in order of id."""
        group = self.groups.get(entry.body.group or "")
        return [] if group is None else [self.entries[id] for id in group.ready]

    def next_deadline(self) -> int | None:
        """Return the earliest end of a lease, a TTL or a retention; None if there is none."""
        return min((ends[0][0] for ends in (self.leases, self.ttls, self.kept) if ends), default=None)

    def ended(self, ends: "SortedList[tuple[int, int]]", limit: int, now_ms: int) -> list[IndexedMessage]:
        """Return at most `limit` messages whose end, in the list `ends`, has come and that no call is writing."""
        found: list[IndexedMessage] = []
        for at_ms, id in ends:
            if at_ms > now_ms or len(found) >= limit:
                break
            if not self.entries[id].is_taken:
                found.append(self.entries[id])
        return found
