"""The state of each message, lease and queue, as known from a history so far."""

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tests.machinery.history.lines import Item, Move, Remove, Stepped
from tests.machinery.history.rules import Findings, Rule


class Sent(NamedTuple):
    queue: str
    item: Item
    # Of the first call that sent it: its line, and the time before it.
    position: int
    at: int


@dataclass(slots=True)
class Lease:
    version: int
    attempt: int
    position: int
    answered_at: float
    # Where the lease may end, as far as the history tells: it holds until `least`, and not beyond `most`.
    least: float
    most: float
    # The latest end that an extension took back: a power cut may bring it back in turn.
    longest: float = 0
    open_calls: int = 0
    # Verdicts called with its receipt, in all.
    calls: int = 0
    # A verdict other than an extension was called, or two calls at once: the history no longer tells where it ends.
    is_loose: bool = False


@dataclass(slots=True)
class Tracked:
    """One message. `queue` is the one that it was sent to."""

    id: int
    queue: str
    item: Item
    sent: Sent
    answered: int | None = None  # the line of the answer that named it first
    acked: int | None = None  # the line of the answer to its ack
    acks: int = 0  # answered: more than one only if it was resurrected
    removed: int | None = None  # the line of the answer to its removal by id
    unanswered_acks: int = 0
    unanswered_removals: int = 0
    closings: int = 0  # acks and final nacks called and not refused
    uncounted: int = 0  # releases and defers called
    undone: int = 0  # deliveries that a power cut may have undone, and their versions
    undone_versions: list[int] = field(default_factory=list)
    delivered: int = 0
    # Of each delivery in order: its line, and the highest version and attempt until then.
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    lease: Lease | None = None
    settled: set[int] | None = None  # versions
    # The last delivery that a durable verdict confirmed: no power cut undoes it.
    durable_deliveries: int = 0
    durable_attempt: int = 0
    is_dead: bool = False
    is_stranded: bool = False
    broke: Rule | None = None

    def blame(self, findings: Findings, rule: Rule, what: str) -> None:
        """A rule of its leases is broken. What breaks other rules on them later only follows from that."""
        if self.broke is None or self.broke is rule:
            self.broke = rule
            findings.broke(rule, what)

    @property
    def ended(self) -> int | None:
        """The line since which it must not be delivered any more."""
        return self.removed if self.acked is None else self.acked

    def lease_of(self, version: int) -> Lease | None:
        """The newest lease, if it is the one of this version."""
        lease = self.lease
        return lease if lease is not None and lease.version == version else None

    def highest_before(self, position: int) -> tuple[int, int]:
        """Version and attempt of what was delivered before a line."""
        for at, version, attempt in reversed(self.marks):
            if at < position:
                return version, attempt
        return 0, 0

    def may_be_undone(self, above: int, upto: int) -> bool:
        """Return whether a power cut may have undone every delivery between two versions."""
        between = [version for version in self.versions if above < version <= upto]
        return all(version in self.undone_versions for version in between)

    def deliver(self, position: int, version: int, attempt: int) -> None:
        _, top_version, top_attempt = self.marks[-1] if self.marks else (0, 0, 0)
        self.marks.append((position, max(version, top_version), max(attempt, top_attempt)))
        self.versions.append(version)
        self.delivered += 1

    def settle(self, version: int) -> None:
        """A verdict that ends this lease holds, and is on disk: so is the claim it ended."""
        if self.settled is None:
            self.settled = set()
        self.settled.add(version)
        lease = self.lease_of(version)
        if lease is not None:
            self.durable_deliveries, self.durable_attempt = self.delivered, lease.attempt

    def cut(self, position: int) -> None:
        """The power went: claims and extensions since the last durable verdict may never have been.

        Then the message is delivered again while its lease would have held, with an attempt that was given out before,
        and once more than its budget allows. Its version still grows: what is undone is not given out again.
        """
        self.undone += self.delivered - self.durable_deliveries
        self.undone_versions.extend(self.versions[self.durable_deliveries :])
        self.durable_deliveries = self.delivered
        if self.marks:
            self.marks.append((position, self.marks[-1][1], self.durable_attempt))
        if self.lease is not None:
            self.lease.least = 0
            self.lease.most = max(self.lease.most, self.lease.longest)


@dataclass(slots=True)
class Removals:
    """The removals by operators from one queue, other than by id."""

    until: int = -1  # what was sent before this line may be gone by one that was answered
    removed: float = 0  # messages, as the answers tell; a deletion of the queue tells no number
    is_deleted: bool = False
    # The lines of calls: by their numbers those without an answer, which happened or not, or happen yet.
    open_calls: dict[int, int] = field(default_factory=dict)
    answered_calls: list[tuple[int, int]] = field(default_factory=list)

    @property
    def unanswered(self) -> int:
        return len(self.open_calls)

    def call(self, position: int, line: Remove) -> None:
        self.open_calls[line.n] = position
        self.is_deleted |= line.verb == "delete"

    def answer(self, position: int, n: int, changed: int | None) -> None:
        self.answered_calls.append((self.open_calls.pop(n), position))
        self.until = position
        self.removed += inf if changed is None else changed

    def refuse(self, n: int) -> None:
        del self.open_calls[n]

    def may_have_ended(self, sent: Sent) -> bool:
        return sent.position < self.until or self.unanswered > 0

    def may_have_ended_during(self, stay: "Stay") -> bool:
        return any(called < stay.until for called in self.open_calls.values()) or any(
            called < stay.until and stay.since < answered for called, answered in self.answered_calls
        )


@dataclass(slots=True)
class Place:
    """One queue."""

    redrives: int = 0
    # Claims without an answer: each may have taken any message once, unseen.
    unseen: int = 0
    removals: Removals = field(default_factory=Removals)


@dataclass(slots=True)
class Stay:
    """A message may have been in a queue between these lines."""

    queue: str
    since: int
    until: float = inf
    is_dropped: bool = False


@dataclass(slots=True)
class Moves:
    """The queues of a message that an operator moved."""

    stays: list[Stay]
    # Without an answer: they happened or not, or happen yet.
    unanswered: int = 0
    answered: int = 0


class Clockwork:
    """The times of the history, around the steps that its clock made."""

    def __init__(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms
        self._steps: list[tuple[int, int, int]] = []
        self.latest = 0

    def step(self, position: int, line: Stepped) -> None:
        self._steps.append((position, line.was, line.at))
        self.latest = max(self.latest, line.was, line.at)

    def latest_of(self, called: int, at: int) -> float:
        """The latest that something happened which was called on a line and had been answered at a time."""
        return self.reached(called, at) + self._skew_ms

    def reached(self, since: int, at: float) -> float:
        """The latest time that the clock has shown since a line, if it shows this one now."""
        for position, was, _ in reversed(self._steps):
            if position < since:
                break
            at = max(at, was)
        return at

    def earliest_of(self, called: int, at: int) -> int:
        """The earliest that something happened which was called on a line, at a time."""
        for position, _, after in reversed(self._steps):
            if position < called:
                break
            at = min(at, after)
        return at - self._skew_ms


@dataclass(slots=True)
class Key:
    """The messages that one idempotency key made."""

    first_at: int
    ids: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Book:
    """All of it."""

    clockwork: Clockwork
    # The client repeats calls by itself: any claim may have taken messages unseen.
    repeats_calls: bool = False
    sent: dict[str, Sent] = field(default_factory=dict)
    refused: dict[str, Sent] = field(default_factory=dict)
    id_of: dict[str, int] = field(default_factory=dict)
    keys: dict[tuple[str, str], Key] = field(default_factory=dict)
    messages: dict[int, Tracked] = field(default_factory=dict)
    # Delivered since their last durable verdict: what a power cut may undo.
    undoable: dict[int, Tracked] = field(default_factory=dict)
    places: defaultdict[str, Place] = field(default_factory=lambda: defaultdict(Place))
    # By id: only messages that somebody tried to move.
    moves: dict[int, Moves] = field(default_factory=dict)

    # --- Where a message is ------------------------------------------------------------------------------------------

    def move(self, position: int, line: Move) -> None:
        for id in line.ids:
            moves = self.moves.get(id)
            if moves is None:
                message = self.messages.get(id)
                since = -1 if message is None else message.sent.position
                moves = self.moves[id] = Moves([Stay(line.queue if message is None else message.queue, since)])
            moves.unanswered += 1
            moves.stays.append(Stay(line.to, position, is_dropped=line.is_dropped))

    def moved(self, called: int, position: int, line: Move, changed: int) -> None:
        """A move was answered. Where another one may interfere, or only some messages went, all of them may be in
        either queue."""
        for id in line.ids:
            moves = self.moves[id]
            if self.repeats_calls:
                continue
            if moves.unanswered == 1 and changed == len(line.ids):
                moves.answered += 1
                for stay in moves.stays:
                    if stay.since != called:
                        stay.until = min(stay.until, position)
            elif not changed:
                moves.stays = [stay for stay in moves.stays if stay.since != called]
            moves.unanswered -= changed in (0, len(line.ids))

    def queues_of(self, message: Tracked) -> list[str]:
        """Every queue that a message may have been in."""
        moves = self.moves.get(message.id)
        return [message.queue] if moves is None else list({message.queue: 0, **{each.queue: 0 for each in moves.stays}})

    def may_be_in(self, message: Tracked, queue: str, since: int) -> bool:
        """Return whether a message may have been in a queue at this line or later."""
        moves = self.moves.get(message.id)
        if moves is None:
            return message.queue == queue
        return any(stay.queue == queue and stay.until > since for stay in moves.stays)

    def is_surely_in(self, message: Tracked, queue: str) -> bool:
        moves = self.moves.get(message.id)
        if moves is None:
            return message.queue == queue
        return not moves.unanswered and {stay.queue for stay in moves.stays if stay.until == inf} == {queue}

    def may_be_removed(self, message: Tracked) -> bool:
        """Return whether an operator may have removed it, other than by id."""
        moves = self.moves.get(message.id)
        if moves is None:
            return self.places[message.queue].removals.may_have_ended(message.sent)
        return any(self.places[stay.queue].removals.may_have_ended_during(stay) for stay in moves.stays)

    # --- Whether it is -----------------------------------------------------------------------------------------------

    def may_have_ended(self, message: Tracked, at: float) -> bool:
        """Return whether at that time it may have been gone already: acked, failed, expired or removed."""
        item = message.item
        if message.closings or message.unanswered_removals or message.removed is not None:
            return True
        unseen = sum(self.places[queue].unseen for queue in self.queues_of(message))
        if item.max_retries < message.delivered + unseen or (self.repeats_calls and item.max_retries < 1_000):
            return True
        if (
            item.ttl_ms is not None
            and self.clockwork.reached(message.sent.position, at) >= message.sent.at + item.ttl_ms
        ):
            return True
        return self.may_be_removed(message)
