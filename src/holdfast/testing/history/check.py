"""The rules that every history must keep, and what breaks them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from holdfast.testing.history.lines import (
    Claim,
    Claimed,
    Counted,
    DeadLetter,
    Delivered,
    Drained,
    Enqueue,
    Enqueued,
    Item,
    Journalled,
    Line,
    Opened,
    PowerCut,
    Redrive,
    Redriven,
    Refused,
    Remove,
    Removed,
    Settle,
    Settled,
    Stepped,
    Stranded,
    Unknown,
)


class Violation(NamedTuple):
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(slots=True)
class Findings:
    violations: list[Violation] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def verdict(self, seed: int) -> str:
        """One line, the same for every proof."""
        broken = Counter(violation.rule for violation in self.violations)
        counts = self.counts
        return (
            f"enqueued {counts['sent']} acked {counts['acked']} lost {broken['lost']} "
            f"resurrected {broken['resurrected']} double-lease {broken['double-lease']} "
            f"stale-accepted {broken['stale-accepted']} corrupt {broken['corrupt']} leaked {broken['leaked']} "
            f"duplicates {counts['duplicates']} seed {seed}"
        )

    def __str__(self) -> str:
        said = ", ".join(f"{name} {number}" for name, number in sorted(self.counts.items()))
        return "\n".join([said, *map(str, self.violations[:20])])


def check(lines: Iterable[Line], *, allow_refusals: bool = False) -> Findings:
    """Hold a history against the rules. With `allow_refusals` a call may raise: faults were put in its way."""
    checker = _Checker(allow_refusals)
    for position, line in enumerate(lines):
        checker.see(position, line)
    checker.end()
    return checker.findings


@dataclass(slots=True)
class _Lease:
    version: int
    position: int
    answered_at: int
    # Where the lease may end, as far as the history tells: it holds until `least`, and not beyond `most`.
    least: float
    most: float
    open_calls: int = 0
    # A verdict other than an extension was called, or two calls at once: the history no longer tells where it ends.
    is_loose: bool = False


@dataclass(slots=True)
class _Message:
    id: int
    queue: str
    item: Item
    answered: int | None = None  # position of the answer that named it first
    acked: int | None = None  # position of the answer to its ack
    unanswered_acks: int = 0
    closings: int = 0  # acks and final nacks called and not refused
    uncounted: int = 0  # releases and defers called
    deliveries: list[tuple[int, int, int]] = field(default_factory=list)  # position, version, attempt
    lease: _Lease | None = None
    settled: set[int] = field(default_factory=set)  # versions
    is_dead: bool = False

    @property
    def may_have_ended(self) -> bool:
        return self.closings > 0 or len(self.deliveries) > self.item.max_retries

    def highest_before(self, position: int) -> tuple[int, int]:
        """Version and attempt of what was delivered before a position."""
        before = [(version, attempt) for at, version, attempt in self.deliveries if at < position]
        return max((version for version, _ in before), default=0), max((attempt for _, attempt in before), default=0)


@dataclass(slots=True)
class _Verdict:
    call: Settle
    # Of each lease: the newest version delivered when it was called, the latest end of the lease, and whether the
    # receipt had been settled with already.
    known: list[tuple[int, float, bool]]


class _Checker:
    def __init__(self, allow_refusals: bool) -> None:
        self.findings = Findings()
        self._allow_refusals = allow_refusals
        self._sent: dict[str, tuple[str, Item]] = {}
        self._id_of: dict[str, int] = {}
        self._messages: dict[int, _Message] = {}
        self._groups: dict[tuple[str, str], dict[int, _Message]] = defaultdict(dict)
        self._redrives: dict[str, int] = defaultdict(int)
        self._calls: dict[int, tuple[int, Any]] = {}
        self._events: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._is_drained = False

    def see(self, position: int, line: Line) -> None:
        self.findings.counts[type(line).__name__.lower()] += 1
        match line:
            case Opened() | PowerCut() | Stepped():
                pass
            case Unknown():
                if not self._allow_refusals:
                    self._break("refused", f"call {line.n} raised {line.error}")
            case Remove():
                self._calls[line.n] = position, line
            case Removed():
                self._call(line.n)
            case Stranded():
                self._break("stuck", f"{line.id} of {line.queue} is {line.state} and was not delivered")
            case Redriven():
                self._call(line.n)
            case Refused():
                _, call = self._call(line.n)
                if not self._allow_refusals:
                    self._break("refused", f"{type(call).__name__} {line.n} raised {line.error}")
            case Enqueue():
                self._calls[line.n] = position, line
                for item in line.items:
                    self._sent[item.payload] = line.queue, item
            case Enqueued():
                self._enqueued(position, line)
            case Claim():
                self._calls[line.n] = position, line
            case Claimed():
                self._claimed(position, line)
            case Settle():
                self._settle(position, line)
            case Settled():
                self._settled(position, line)
            case Redrive():
                self._calls[line.n] = position, line
                self._redrives[line.queue] += 1
            case Counted():
                if line.counted != line.scanned:
                    self._break("miscounted", f"{line.queue} counts {line.counted}, a scan finds {line.scanned}")
            case DeadLetter():
                if (message := self._known(line.id, line.payload, line.queue)) is not None:
                    message.is_dead = True
            case Journalled():
                self._events[line.id][line.event] += 1
            case Drained():
                self._is_drained = True

    def end(self) -> None:
        if not self._is_drained:
            self._break("stuck", "the history does not end with everything drained")
        for message in self._messages.values():
            self._check_fate(message)
        for _, call in self._calls.values():
            if isinstance(call, Enqueue) and all(item.key is None for item in call.items):
                there = [item.payload for item in call.items if item.payload in self._id_of]
                if there and len(there) < len(call.items):
                    self._break("torn", f"call {call.n} was cut off and {len(there)} of {len(call.items)} are there")
        if self._events:
            self._check_journal()

    # --- Calls and answers -------------------------------------------------------------------------------------

    def _call(self, n: int) -> tuple[int, Any]:
        return self._calls.pop(n)

    def _enqueued(self, position: int, line: Enqueued) -> None:
        _, call = self._call(line.n)
        for id, item in zip(line.ids, call.items, strict=True):
            message = self._known(id, item.payload, call.queue)
            if message is not None and message.answered is None:
                message.answered = position
                self.findings.counts["sent"] += 1

    def _claimed(self, position: int, line: Claimed) -> None:
        called, call = self._call(line.n)
        per_group: dict[str, list[_Message]] = defaultdict(list)
        for each in line.deliveries:
            message = self._known(each.id, each.payload, call.queue)
            if message is None:
                continue
            if message.acked is not None and message.acked < called:
                self._break("resurrected", f"{each.id} was acked and delivered again as version {each.version}")
            self._check_versions(message, each, called)
            self._check_lease(message, each, position, line.at)
            self.findings.counts["duplicates"] += bool(message.deliveries)
            message.deliveries.append((position, each.version, each.attempt))
            allowed = (message.item.max_retries + 1) * (1 + self._redrives[call.queue]) + message.uncounted
            if len(message.deliveries) > allowed:
                self._break("over budget", f"{each.id} was delivered {len(message.deliveries)} times")
            if message.item.group is not None:
                per_group[message.item.group].append(message)
        for name, batch in per_group.items():
            self._check_group(name, batch, called, line.at)

    def _check_versions(self, message: _Message, each: Delivered, called: int) -> None:
        version, attempt = message.highest_before(called)
        if each.version <= version or any(each.version == other for _, other, _ in message.deliveries):
            self._break("version", f"{each.id} was delivered as version {each.version} after {version}")
        if each.attempt <= attempt:
            self._break("attempt", f"{each.id} was delivered as attempt {each.attempt} after {attempt}")

    def _check_lease(self, message: _Message, each: Delivered, position: int, at: int) -> None:
        fresh = _Lease(each.version, position, at, each.expires_at, each.expires_at)
        old = message.lease
        if old is not None:
            older, newer = (old, fresh) if old.version < fresh.version else (fresh, old)
            if older.least > newer.answered_at:
                self._break("double-lease", f"{each.id} was delivered while version {older.version} held")
            fresh = newer
        message.lease = fresh

    def _check_group(self, name: str, batch: list[_Message], called: int, at: int) -> None:
        ids = [message.id for message in batch]
        if ids != sorted(ids):
            self._break("group order", f"group {name} was delivered as {ids}")
        for other in self._groups[batch[0].queue, name].values():
            if other.id in ids or other.may_have_ended:
                continue
            if other.answered is not None and other.answered < called and other.id < ids[-1]:
                self._break("group order", f"{ids[-1]} of group {name} was delivered before {other.id}")
            lease = other.lease
            if lease is not None and lease.position < called and lease.least > at:
                self._break("group order", f"{ids} of group {name} was delivered while {other.id} was in flight")

    def _settle(self, position: int, line: Settle) -> None:
        known: list[tuple[int, float, bool]] = []
        for id, version in line.leases:
            message = self._messages[id]
            lease = _lease_of(message, version)
            most = 0 if lease is None else lease.most
            known.append((message.highest_before(position)[0], most, version in message.settled))
            if lease is not None:
                lease.is_loose |= lease.open_calls > 0 or line.verb != "extend"
                lease.open_calls += 1
                lease.least = 0
                if line.verb == "extend":
                    lease.most = inf
            message.closings += line.verb in ("ack", "final")
            message.unanswered_acks += line.verb == "ack"
            message.uncounted += line.verb in ("release", "defer")
        self._calls[line.n] = position, _Verdict(line, known)

    def _settled(self, position: int, line: Settled) -> None:
        _, verdict = self._call(line.n)
        call = verdict.call
        for index, ((id, version), ok) in enumerate(zip(call.leases, line.ok, strict=True)):
            message = self._messages[id]
            newest, most, was_settled = verdict.known[index]
            if call.verb == "ack":
                message.unanswered_acks -= 1
            lease = _lease_of(message, version)
            if lease is not None:
                lease.open_calls -= 1
                if call.verb == "extend" and not lease.is_loose:
                    lease.most = line.expires_at[index] or most
                    lease.least = lease.most if ok else 0
            if not ok:
                message.closings -= call.verb in ("ack", "final")
                continue
            if newest > version:
                self._break("stale-accepted", f"{call.verb} of {id} as version {version} held after {newest}")
            elif was_settled:
                self._break("stale-accepted", f"{call.verb} of {id} as version {version} held after it was settled")
            elif call.at >= most:
                self._break(
                    "stale-accepted", f"{call.verb} of {id} as version {version} held after its lease had ended"
                )
            if call.verb != "extend":
                message.settled.add(version)
            if call.verb == "ack":
                message.acked = position
                self.findings.counts["acked"] += 1
                self._groups.get((message.queue, message.item.group or ""), {}).pop(id, None)

    # --- What is known of a message ----------------------------------------------------------------------------

    def _known(self, id: int, payload: str, queue: str) -> _Message | None:
        """The message, if payload, queue and id belong together."""
        sent = self._sent.get(payload)
        if sent is None:
            self._break("corrupt", f"{id} has a payload that nobody sent: {payload}")
            return None
        if sent[0] != queue:
            self._break("leaked", f"{id} was sent to {sent[0]} and is in {queue}")
            return None
        if self._id_of.setdefault(payload, id) != id:
            self._break("duplicated", f"{id} and {self._id_of[payload]} are one message, key {sent[1].key}")
        message = self._messages.get(id)
        if message is None:
            message = self._messages[id] = _Message(id, queue, sent[1])
            if message.item.group is not None:
                self._groups[queue, message.item.group][id] = message
        elif message.item.payload != payload:
            self._break("corrupt", f"{id} has the payload {payload} and was sent as {message.item.payload}")
            return None
        return message

    def _check_fate(self, message: _Message) -> None:
        if message.acked is not None and message.is_dead:
            self._break("resurrected", f"{message.id} was acked and lies among the dead letters")
        elif message.acked is None and not message.unanswered_acks and not message.is_dead:
            how = "acknowledged" if message.answered is not None else "delivered"
            self._break("lost", f"{message.id} of {message.queue} was {how} and is gone")

    def _check_journal(self) -> None:
        for message in self._messages.values():
            events = self._events[message.id]
            if events["enqueued"] != 1:
                self._break("journal", f"{message.id} has {events['enqueued']} enqueued events")
            acked = int(message.acked is not None)
            if not acked <= events["succeeded"] <= max(acked, min(1, message.unanswered_acks)):
                self._break("journal", f"{message.id} has {events['succeeded']} succeeded events and {acked} acks")
            if events["claimed"] < len(message.deliveries):
                self._break("journal", f"{message.id}: {len(message.deliveries)} deliveries, {events['claimed']} told")

    def _break(self, rule: str, what: str) -> None:
        self.findings.violations.append(Violation(rule, what))


def _lease_of(message: _Message, version: int) -> _Lease | None:
    """The newest lease, if it is the one of this version."""
    lease = message.lease
    return lease if lease is not None and lease.version == version else None
