"""The checker: one pass over a history, line by line, and a look at what became of every message."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tests.machinery.history import lines as h
from tests.machinery.history.fates import check_fates, check_journal, check_torn
from tests.machinery.history.groups import Groups
from tests.machinery.history.rules import Findings, Rule
from tests.machinery.history.tracking import Book, Clockwork, Key, Lease, Sent, Tracked
from tests.machinery.history.verdicts import Verdict, Verdicts

# Before the first line.
_EVER = -1


def check(
    lines: Iterable[h.Line],
    *,
    allow_refusals: bool = False,
    repeats_calls: bool = False,
    skew_ms: int = 0,
    dedup_window_ms: int | None = None,
) -> Findings:
    """Hold a history against the rules.

    allow_refusals   a call may raise: faults were put in its way
    repeats_calls    the client repeats calls by itself, so that a claim may take messages and lose them on the way
    skew_ms          how far the callers' clock may be from the store's
    dedup_window_ms  how long a key makes one message; None: longer than the history
    """
    checker = _Checker(Book(Clockwork(skew_ms), repeats_calls), allow_refusals, dedup_window_ms)
    for position, line in enumerate(lines):
        checker.see(position, line)
    checker.end()
    return checker.findings


class _Checker:
    def __init__(self, book: Book, allow_refusals: bool, dedup_window_ms: int | None) -> None:
        self.findings = Findings()
        self._book = book
        self._allow_refusals = allow_refusals
        self._dedup_window_ms = dedup_window_ms
        self._groups = Groups(book, self.findings)
        self._verdicts = Verdicts(book, self._groups, self.findings)
        self._calls: dict[int, tuple[int, Any]] = {}
        self._events: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._drained: h.Drained | None = None
        self._seen: defaultdict[type, int] = defaultdict(int)
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            h.Opened: lambda position, line: None,
            h.PowerCut: self._power_cut,
            h.Stepped: book.clockwork.step,
            h.Enqueue: self._enqueue,
            h.Enqueued: self._enqueued,
            h.Claim: self._claim,
            h.Claimed: self._claimed,
            h.Settle: self._settle,
            h.Settled: self._settled,
            h.Redrive: self._redrive,
            h.Redriven: self._redriven,
            h.Remove: self._remove,
            h.Removed: self._removed,
            h.Move: self._move,
            h.Moved: self._moved,
            h.Refused: self._refused,
            h.Unknown: self._unknown,
            h.Counted: self._counted,
            h.DeadLetter: self._dead_letter,
            h.Stranded: self._stranded,
            h.Journalled: self._journalled,
            h.Drained: self._end,
        }

    def see(self, position: int, line: h.Line) -> None:
        kind = type(line)
        self._seen[kind] += 1
        self._handlers[kind](position, line)

    def end(self) -> None:
        counts = self.findings.counts
        for kind, number in self._seen.items():
            counts[kind.__name__.lower()] = number
        counts["sent"] = len(self._book.messages)
        if self._drained is None:
            self._break(Rule.STUCK, "the history does not end with everything drained")
        else:
            check_fates(self._book, self._drained.at, self.findings)
            check_torn(self._book, (call for _, call in self._calls.values()), self.findings)
            if self._events:
                check_journal(self._book, self._events, self.findings)

    # --- Calls and answers -----------------------------------------------------------------------------------------

    def _answer(self, n: int) -> tuple[int, Any]:
        """The call that this is the answer to. One across the border of tenants should have been refused."""
        position, call = self._calls.pop(n)
        asked = call.call if isinstance(call, Verdict) else call
        if _crosses(asked):
            self._break(Rule.LEAKED, f"{asked.caller} was answered by {asked.queue}: {type(asked).__name__} {n}")
        return position, call

    def _refused(self, position: int, line: h.Refused) -> None:
        called, call = self._calls.pop(line.n)
        asked = call
        match call:
            case h.Enqueue():
                for item in call.items:
                    if item.key is None:
                        self._book.refused[item.payload] = self._book.sent[item.payload]
            case h.Claim():
                self._book.places[call.queue].unseen -= 1
            case Verdict():
                asked = call.call
                self._verdicts.refuse(call)
            case h.Redrive():
                self._book.places[call.queue].redrives -= 1
            case h.Remove():
                self._removal(position, call, is_refused=True)
            case h.Move():
                self._book.moved(called, position, call, 0)
        if not self._allow_refusals and not _crosses(asked):
            self._break(Rule.REFUSED, f"{type(asked).__name__} {line.n} raised {line.error}")

    def _unknown(self, position: int, line: h.Unknown) -> None:
        """The call stays as it is, without an answer."""
        _, call = self._calls[line.n]
        if isinstance(call, Verdict):
            self._verdicts.doubt(call)
        if not self._allow_refusals:
            self._break(Rule.REFUSED, f"{type(call).__name__} {line.n} raised {line.error}")

    def _power_cut(self, position: int, line: h.PowerCut) -> None:
        for message in self._book.undoable.values():
            message.cut(position)
        self._book.undoable.clear()

    def _enqueue(self, position: int, line: h.Enqueue) -> None:
        self._calls[line.n] = position, line
        for item in line.items:
            if item.payload not in self._book.sent:
                self._book.sent[item.payload] = Sent(line.queue, item, position, line.at)
            if item.key is not None:
                self._book.keys.setdefault((line.queue, item.key), Key(line.at))

    def _enqueued(self, position: int, line: h.Enqueued) -> None:
        _, call = self._answer(line.n)
        self._book.clockwork.latest = max(self._book.clockwork.latest, line.at)
        for id, item in zip(line.ids, call.items, strict=True):
            message = self._book.messages.get(id)
            if message is None or item.key is None or message.item.key != item.key or message.queue != call.queue:
                # A key that is known answers with its message, which may have been moved long since.
                message = self._known(id, item.payload, call.queue, _EVER)
            if message is not None and message.answered is None:
                message.answered = position

    def _claim(self, position: int, line: h.Claim) -> None:
        self._calls[line.n] = position, line
        self._book.places[line.queue].unseen += 1

    def _claimed(self, position: int, line: h.Claimed) -> None:
        called, call = self._answer(line.n)
        book = self._book
        book.places[call.queue].unseen -= 1
        book.clockwork.latest = max(book.clockwork.latest, line.at)
        if not line.deliveries:
            return
        latest = book.clockwork.latest_of(called, line.at)
        per_group: dict[tuple[str, str], list[Tracked]] = {}
        for each in line.deliveries:
            message = self._known(each.id, each.payload, call.queue, called)
            if message is None:
                continue
            self._check_delivery(message, each, called)
            self._check_lease(message, each, position, latest)
            self.findings.counts["duplicates"] += message.delivered > 0
            message.deliver(position, each.version, each.attempt)
            self._book.undoable[each.id] = message
            item = message.item
            redrives = sum(book.places[queue].redrives for queue in book.queues_of(message))
            allowed = (item.max_retries + 1) * (1 + redrives)
            allowed += message.uncounted + message.undone
            if message.delivered > allowed:
                what = f"{each.id} was delivered {message.delivered} times, not {allowed}"
                message.blame(self.findings, Rule.OVER_BUDGET, what)
            if item.group is not None:
                # One that leaked stands where it was sent, so that it breaks no other rule there.
                queue = call.queue if book.may_be_in(message, call.queue, called) else message.queue
                per_group.setdefault((queue, item.group), []).append(message)
        for (queue, _), batch in per_group.items():
            self._groups.deliver(queue, batch, called, latest)

    def _check_delivery(self, message: Tracked, each: h.Delivered, called: int) -> None:
        if message.ended is not None and message.ended < called:
            how = "acked" if message.acked is not None else "removed"
            what = f"{each.id} was {how} and delivered again as version {each.version}"
            message.blame(self.findings, Rule.RESURRECTED, what)
        version, attempt = message.highest_before(called)
        if each.version <= version or each.version in message.versions:
            what = f"{each.id} was delivered as version {each.version} after {version}"
            message.blame(self.findings, Rule.VERSION, what)
        if each.attempt <= attempt:
            self._break(Rule.ATTEMPT, f"{each.id} was delivered as attempt {each.attempt} after {attempt}")

    def _check_lease(self, message: Tracked, each: h.Delivered, position: int, latest: float) -> None:
        fresh = Lease(each.version, each.attempt, position, latest, each.expires_at, each.expires_at)
        old = message.lease
        if old is not None:
            older, newer = (old, fresh) if old.version <= fresh.version else (fresh, old)
            # A lease that the clock has passed once is over, though the clock was set back since.
            if older.least > self._book.clockwork.reached(older.position, newer.answered_at):
                what = f"{each.id} was delivered as version {each.version} while {older.version} held"
                message.blame(self.findings, Rule.DOUBLE_LEASE, what)
            fresh = newer
        message.lease = fresh

    def _settle(self, position: int, line: h.Settle) -> None:
        self._calls[line.n] = position, self._verdicts.call(position, line)

    def _settled(self, position: int, line: h.Settled) -> None:
        called, verdict = self._answer(line.n)
        self._verdicts.answer(position, called, verdict, line)

    # --- Operators -------------------------------------------------------------------------------------------------

    def _redrive(self, position: int, line: h.Redrive) -> None:
        self._calls[line.n] = position, line
        self._book.places[line.queue].redrives += 1

    def _redriven(self, position: int, line: h.Redriven) -> None:
        self._answer(line.n)

    def _remove(self, position: int, line: h.Remove) -> None:
        self._calls[line.n] = position, line
        if line.verb != "remove":
            self._book.places[line.queue].removals.call(position, line)
        elif line.id in self._book.messages:
            self._book.messages[line.id].unanswered_removals += 1

    def _removed(self, position: int, line: h.Removed) -> None:
        _, call = self._answer(line.n)
        self._removal(position, call, line.changed)

    def _removal(self, position: int, call: h.Remove, changed: int | None = 0, *, is_refused: bool = False) -> None:
        if call.verb != "remove":
            removals = self._book.places[call.queue].removals
            removals.refuse(call.n) if is_refused else removals.answer(position, call.n, changed)
            return
        message = self._book.messages.get(call.id or 0)
        if message is not None:
            message.unanswered_removals -= message.unanswered_removals > 0
            if changed:
                message.removed = position
                self._groups.end(message)

    def _move(self, position: int, line: h.Move) -> None:
        self._calls[line.n] = position, line
        for id in line.ids:
            if (message := self._book.messages.get(id)) is not None:
                # Where it is cannot be told before it is delivered again: until then it holds up no group.
                self._groups.end(message)
        self._book.move(position, line)

    def _moved(self, position: int, line: h.Moved) -> None:
        called, call = self._answer(line.n)
        self._book.moved(called, position, call, line.changed)

    # --- What was found --------------------------------------------------------------------------------------------

    def _counted(self, position: int, line: h.Counted) -> None:
        if line.counted != line.scanned:
            self._break(Rule.MISCOUNTED, f"{line.queue} counts {line.counted}, a scan finds {line.scanned}")

    def _dead_letter(self, position: int, line: h.DeadLetter) -> None:
        if (message := self._known(line.id, line.payload, line.queue, position)) is not None:
            if message.is_dead:
                self._break(Rule.DUPLICATED, f"{line.id} is among the failed of {line.queue} and once more")
            message.is_dead = True

    def _stranded(self, position: int, line: h.Stranded) -> None:
        self._break(Rule.STUCK, f"{line.id} of {line.queue} is {line.state} and was not delivered")
        if (message := self._known(line.id, line.payload, line.queue, position)) is not None:
            message.is_stranded = True

    def _journalled(self, position: int, line: h.Journalled) -> None:
        self._events[line.id][line.event] += 1

    def _end(self, position: int, line: h.Drained) -> None:
        self._drained = line

    def _known(self, id: int, payload: str, queue: str, since: int) -> Tracked | None:
        """The message with this id, which was in the queue at this line or later. That payload, queue and id belong
        together is checked here."""
        book = self._book
        sent = book.sent.get(payload)
        message = book.messages.get(id)
        if sent is None:
            self._break(Rule.CORRUPT, f"{id} has a payload that nobody sent: {payload}")
            return message
        if message is None:
            if payload in book.refused:
                self._break(Rule.PHANTOM, f"{id} was refused, and is in {queue}")
            message = book.messages[id] = Tracked(id, sent.queue, sent.item, sent)
            self._groups.add(message)
            self._check_single(message)
        elif message.item.payload != payload:
            if message.item.key is None or message.item.key != sent.item.key:
                self._break(Rule.CORRUPT, f"{id} has the payload {payload} and was sent as {message.item.payload}")
                return message
            message.item = sent.item  # of several with one key, this is the one that made it
        if not book.may_be_in(message, queue, since):
            message.blame(self.findings, Rule.LEAKED, f"{id} was sent to {message.queue} and is in {queue}")
        return message

    def _check_single(self, message: Tracked) -> None:
        """A message that is seen for the first time must be the only one of its payload, and of its key."""
        item, book = message.item, self._book
        if item.key is None:
            if book.id_of.setdefault(item.payload, message.id) != message.id:
                self._break(Rule.DUPLICATED, f"{message.id} and {book.id_of[item.payload]} are one message")
            return
        key = book.keys[message.queue, item.key]
        key.ids.add(message.id)
        book.id_of.setdefault(item.payload, message.id)
        window = self._dedup_window_ms
        allowed = 1 if window is None else 1 + (book.clockwork.latest - key.first_at) // window
        if len(key.ids) > allowed and not book.places[message.queue].removals.is_deleted:
            self._break(Rule.DUPLICATED, f"{sorted(key.ids)} are one message, key {item.key}")

    def _break(self, rule: Rule, what: str) -> None:
        self.findings.broke(rule, what)


def _crosses(call: Any) -> bool:
    """Return whether a tenant asks for a queue of another."""
    return call.caller is not None and not call.queue.startswith(f"{call.caller}/")
