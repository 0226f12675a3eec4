"""Checks of one queue: its messages, and in the same order of id their leases, lives, state documents and indexes."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.ids import from_bytes
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.invariants.messages import check_life, check_options
from holdfast.model.invariants.side_records import check_counts
from holdfast.model.message import State, headers_bytes
from holdfast.model.requests import StateDocument
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.findings import Findings
from holdfast.stores.formats.message_record import DecodedMessage, decode_life, decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Counters
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.verify.directory_check import StoredDirectory
from holdfast.stores.rocks.verify.extras_check import check_groups, check_ledgers, check_schedules, check_seen
from holdfast.stores.rocks.verify.index_check import (
    CHUNK,
    DEADLINES,
    OF_ONE_QUEUE,
    VISIBLE,
    Deadlines,
    Space,
    check_strays,
    entries_of,
)
from holdfast.stores.rocks.verify.pieces_check import check_payload
from holdfast.stores.values import QueueRow

_STATE_FIELDS = {
    State.READY: "ready",
    State.IN_FLIGHT: "in_flight",
    State.FAILED: "failed",
    State.SUCCEEDED: "kept",
}


# Findings that `_check_state` reports in its own words, because a lease has an entry of its own here.
_BY_ENTRY = frozenset({DamageKind.LEASE_MISSING, DamageKind.LEASE_UNEXPECTED})


class EntriesById:
    """A space whose entries are read in order of id, along with the messages.

    An entry that is passed over has no message, and is added to the findings as `damage`.
    """

    def __init__(
        self, entries: Iterator[tuple[bytes, bytes]], what: str, damage: DamageKind, queue: object, findings: Findings
    ) -> None:
        self._entries = entries
        self._what = what
        self._damage = damage
        self._queue = queue
        self._findings = findings
        self._next = next(entries, None)

    def take(self, id16: bytes) -> list[bytes]:
        """Return the values stored under this id. Ids must be passed in rising order."""
        taken: list[bytes] = []
        while self._next is not None and self._next[0] <= id16:
            if self._next[0] == id16:
                taken.append(self._next[1])
            else:
                self._findings.add(
                    self._damage, f"has {self._what}, but there is no such message", self._queue, self._next[0]
                )
            self._next = next(self._entries, None)
        return taken

    def finish(self) -> None:
        """Report all remaining entries: they have no message."""
        self.take(b"\xff" * (keys.ID_SIZE + 1))


class RocksQueueCheck:
    """The check of one queue. `run` adds its violations and counts to the findings."""

    def __init__(
        self,
        database: MergedReads,
        row: QueueRow,
        directory: StoredDirectory,
        deadlines: Deadlines,
        findings: Findings,
        total: int,
    ) -> None:
        self._database = database
        self._ref = row.ref
        self._p = keys.prefix(row.tenant_id, row.queue_id)
        self._directory = directory
        self._deadlines = deadlines
        self._findings = findings
        self._total = total
        # A queue that never had a message has no stored counters.
        self._counters = directory.counters.get(self._p, Counters())
        self._found = Counters(counted_at=self._counters.counted_at)
        # The index entries that messages must have: those still to look up, and the number found in each index.
        self._wanted: list[tuple[Space, bytes, bytes]] = []
        self._present: Counter[Space] = Counter()
        # Messages in flight, by the hash of their group.
        self._busy: Counter[bytes] = Counter()

    def run(self) -> None:
        """Check the messages, indexes, counters, idempotency keys, ledgers and schedules of the queue."""
        self._check_messages()
        heads = check_groups(self._database, self._p, self._busy, self._ref, self._findings)
        for number, key in enumerate(heads, 1):
            self._want(VISIBLE, key, key[-keys.ID_SIZE :])
            if number % CHUNK == 0:
                self._look_up_wanted()
        self._look_up_wanted()
        self._check_entries(heads)
        self._check_counters()
        check_seen(self._database, self._p, self._ref, self._directory.highest_id, self._findings)
        check_ledgers(self._database, self._p, self._ref, self._findings)
        check_schedules(self._database, self._p, self._ref, self._directory.highest_id, self._findings)
        self._add_totals()

    # --- Messages ----------------------------------------------------------------------------------------------

    def _check_messages(self) -> None:
        p = self._p
        self._leases = self._entries(keys.LEASES, b"", "a lease entry (le)", DamageKind.MESSAGE_LOST)
        self._lives = self._entries(keys.INDEXES, keys.LIVES, "a life (ix f)", DamageKind.MESSAGE_LOST)
        self._states = self._entries(
            keys.INDEXES, keys.STATES, "a state document (ix s)", DamageKind.STATE_DOCUMENT_ORPHAN
        )
        done = self._findings.totals["messages"]
        for number, (key, raw) in enumerate(self._database.items(keys.MESSAGES, p, keys.after(p)), 1):
            self._check_message(key[keys.P_SIZE :], raw)
            if number % CHUNK == 0:
                self._look_up_wanted()
                self._findings.progress("messages", done + number, self._total)
            self._findings.totals["messages"] += 1
        for entries in (self._leases, self._lives, self._states):
            entries.finish()
        self._findings.progress("messages", self._findings.totals["messages"], self._total)

    def _entries(self, family: int, space: bytes, what: str, damage: DamageKind) -> EntriesById:
        lower, start = space + self._p, len(space) + keys.P_SIZE
        entries = self._database.items(family, lower, keys.after(lower))
        return EntriesById(((key[start:], raw) for key, raw in entries), what, damage, self._ref, self._findings)

    def _check_message(self, id16: bytes, raw: bytes) -> None:
        leases, lives, states = self._leases.take(id16), self._lives.take(id16), self._states.take(id16)
        try:
            id = from_bytes(id16)
            message = decode_message(id, raw)
            has_state, life = decode_life((leases + lives)[0]) if leases or lives else (False, message.first)
        except (StoreUnavailable, InvalidArgument) as error:
            self._add(DamageKind.MESSAGE_UNREADABLE, str(error), id16)
            return
        if id > self._directory.highest_id:
            self._add(
                DamageKind.ID_INVALID, f"its id is above the highest that was given, {self._directory.highest_id}", id16
            )
        self._check_state(id16, life, has_lease=bool(leases), has_life=bool(lives))
        self._check_document(id16, has_state, states)
        self._findings.add_all(
            check_options(message.envelope.given_correlation_id, message.envelope.max_retries), self._ref, id16
        )
        if message.envelope.pieces is not None:
            check_payload(self._database, message.envelope.pieces, self._ref, id16, self._findings)
        self._count(message, life)
        try:
            entries = list(entries_of(self._p, id16, message.envelope.group, life, self._counters.counted_at))
        except (ValueError, IndexError, OverflowError) as error:
            self._add(DamageKind.MESSAGE_UNREADABLE, f"no key can be made of its times and its priority: {error}", id16)
            return
        for space, key in entries:
            self._want(space, key, id16)

    def _check_state(self, id16: bytes, life: Life, *, has_lease: bool, has_life: bool) -> None:
        if has_lease and has_life:
            self._add(
                DamageKind.STATE_INVALID,
                "is in two states: it has a lease entry (le) and a life of its own (ix f)",
                id16,
            )
        elif has_lease and (life.state is not State.IN_FLIGHT or life.lease is None):
            self._add(DamageKind.LEASE_UNEXPECTED, f"has a lease entry (le) that says {life.state}", id16)
        elif not has_lease and (life.state is State.IN_FLIGHT or life.lease is not None):
            self._add(DamageKind.LEASE_MISSING, "is in flight, but has no lease entry (le)", id16)
        # The two rules above have reported a missing or an unexpected lease by the entry it is in.
        problems = (each for each in check_life(life) if each.damage not in _BY_ENTRY)
        self._findings.add_all(problems, self._ref, id16)

    def _check_document(self, id16: bytes, has_state: bool, states: list[bytes]) -> None:
        if has_state != bool(states):
            says, found = ("a", "none") if has_state else ("no", "one (ix s)")
            damage = DamageKind.STATE_DOCUMENT_LOST if has_state else DamageKind.STATE_DOCUMENT_ORPHAN
            self._add(damage, f"its life says that it has {says} state document, but there is {found}", id16)
        for raw in states:
            try:
                msgspec.msgpack.decode(raw, type=StateDocument)
            except msgspec.MsgspecError as error:
                self._add(DamageKind.STATE_DOCUMENT_UNREADABLE, f"its state document is damaged: {error}", id16)

    def _count(self, message: DecodedMessage, life: Life) -> None:
        found, envelope = self._found, message.envelope
        name = _STATE_FIELDS[life.state]
        setattr(found, name, getattr(found, name) + 1)
        if life.state is State.READY and life.visible_at > found.counted_at:
            found.delayed += 1
        if life.state is State.IN_FLIGHT and envelope.group is not None:
            self._busy[keys.hashed(envelope.group)] += 1
        payload_bytes = len(envelope.payload) if envelope.pieces is None else envelope.pieces.size
        found.bytes += headers_bytes(envelope.headers) + payload_bytes

    # --- Index entries -----------------------------------------------------------------------------------------

    def _want(self, space: Space, key: bytes, id16: bytes) -> None:
        self._wanted.append((space, key, id16))

    def _look_up_wanted(self) -> None:
        by_family: dict[int, list[tuple[Space, bytes, bytes]]] = {}
        for wanted in self._wanted:
            by_family.setdefault(wanted[0].family, []).append(wanted)
        self._wanted = []
        for family, entries in by_family.items():
            for (space, _, id16), value in zip(
                entries, self._database.get_many(family, [key for _, key, _ in entries]), strict=True
            ):
                if value is None:
                    self._add(DamageKind.INDEX_MISSING, f"is missing from {space.title}", id16)
                else:
                    self._present[space] += 1

    def _check_entries(self, heads: list[bytes]) -> None:
        """Check that no index has an entry that no message must have.

        Every entry that a message must have was looked up. So an index with no more entries than were found has no
        others, and only an index with more is searched for them.
        """
        for space in (*OF_ONE_QUEUE, *DEADLINES):
            if space in DEADLINES:
                number = self._deadlines.get(space, Counter())[self._p]
            else:
                lower = space.lead + self._p
                number = sum(1 for _ in self._database.scan(space.family, lower, keys.after(lower)))
            if number != self._present[space]:
                shown = heads if space is VISIBLE else []
                counted_at = self._counters.counted_at
                check_strays(self._database, space, self._p, shown, counted_at, self._ref, self._findings)

    # --- Counts ------------------------------------------------------------------------------------------------

    def _check_counters(self) -> None:
        names = ("ready", "delayed", "in_flight", "failed", "kept", "bytes")
        stored, found = ({name: getattr(each, name) for name in names} for each in (self._counters, self._found))
        self._findings.add_all(check_counts(stored, found), self._ref)

    def _add_totals(self) -> None:
        found, totals = self._found, self._findings.totals
        totals["ready"] += found.ready
        totals["delayed"] += found.delayed
        totals["in_flight"] += found.in_flight
        totals["failed"] += found.failed
        totals["succeeded"] += found.kept
        totals["bytes"] += found.bytes

    def _add(self, damage: DamageKind, what: str, id16: bytes) -> None:
        self._findings.add(damage, what, self._ref, id16)
