"""R4: a verdict holds with the receipt of the current lease alone, and one that is refused changes nothing."""

from math import inf
from typing import NamedTuple

from tests.machinery.history import lines as h
from tests.machinery.history.groups import Groups
from tests.machinery.history.rules import Findings, Rule
from tests.machinery.history.tracking import Book, Tracked


class Known(NamedTuple):
    """The facts known about a receipt when a verdict with it was called."""

    newest: int  # version delivered
    least: float
    most: float
    was_settled: bool
    # Nothing else was known to touch this lease.
    is_alone: bool
    # Verdicts called with it until then, this one too.
    calls: int = 0


class Verdict(NamedTuple):
    call: h.Settle
    known: list[Known | None]


class Verdicts:
    def __init__(self, book: Book, groups: Groups, findings: Findings) -> None:
        self._book = book
        self._groups = groups
        self._findings = findings

    def call(self, position: int, line: h.Settle) -> Verdict:
        return Verdict(line, [self._called(position, line.verb, id, version) for id, version in line.leases])

    def refuse(self, verdict: Verdict) -> None:
        """The whole call was refused."""
        for index in range(len(verdict.call.leases)):
            self._undo(verdict, index)

    def doubt(self, verdict: Verdict) -> None:
        """Nobody will ever know: a message that may have ended holds up no group, until it is delivered again."""
        if verdict.call.verb in ("ack", "final"):
            for id, _ in verdict.call.leases:
                if (message := self._book.messages.get(id)) is not None:
                    self._groups.end(message)

    def _called(self, position: int, verb: str, id: int, version: int) -> Known | None:
        message = self._book.messages.get(id)
        if message is None:
            return None  # what it was delivered as is broken already
        newest = message.highest_before(position)[0]
        was_settled = message.settled is not None and version in message.settled
        lease = message.lease_of(version)
        if lease is None:
            known = Known(newest, 0, inf, was_settled, False)
        else:
            is_alone = not (lease.open_calls or lease.is_loose or was_settled)
            lease.calls += 1
            known = Known(newest, lease.least, lease.most, was_settled, is_alone, lease.calls)
            lease.is_loose |= lease.open_calls > 0 or verb != "extend"
            lease.open_calls += 1
            lease.least = 0
            if verb == "extend":
                lease.most = inf
        message.closings += verb in ("ack", "final")
        message.unanswered_acks += verb == "ack"
        message.uncounted += verb in ("release", "defer")
        return known

    def answer(self, position: int, called: int, verdict: Verdict, line: h.Settled) -> None:
        call = verdict.call
        for index, (id, version) in enumerate(call.leases):
            known = verdict.known[index]
            message = self._book.messages.get(id)
            if message is None or known is None:
                continue
            if line.ok[index]:
                self._accepted(position, called, call, message, version, known)
                until = line.expires_at[index] if line.expires_at else None
                self._hold(call.verb, message, version, known, until)
            elif not (line.unsure and line.unsure[index]):
                self._undo(verdict, index)
                self._check_robbed(called, call.verb, message, version, known, line.at)

    def _accepted(
        self, position: int, called: int, call: h.Settle, message: Tracked, version: int, known: Known
    ) -> None:
        what = f"{call.verb} of {message.id} as version {version} held after"
        if known.newest > version and not message.may_be_undone(version, known.newest):
            message.blame(self._findings, Rule.STALE_ACCEPTED, f"{what} version {known.newest} was delivered")
        elif known.was_settled:
            message.blame(self._findings, Rule.STALE_ACCEPTED, f"{what} it was settled")
        elif message.removed is not None and message.removed < called:
            message.blame(self._findings, Rule.STALE_ACCEPTED, f"{what} it was removed")
        elif self._book.clockwork.earliest_of(called, call.at) >= known.most:
            message.blame(self._findings, Rule.STALE_ACCEPTED, f"{what} its lease had ended")
        if call.verb == "extend":
            return
        message.settle(version)
        if message.lease_of(version) is not None:
            self._book.undoable.pop(message.id, None)
        if call.verb == "ack":
            message.acks += 1
            if message.acked is None:
                message.acked = position
                self._findings.counts["acked"] += 1
                self._groups.end(message)

    def _hold(self, verb: str, message: Tracked, version: int, known: Known, until: int | None) -> None:
        message.unanswered_acks -= verb == "ack"
        lease = message.lease_of(version)
        if lease is None:
            return
        lease.open_calls -= 1
        if verb == "extend":
            lease.longest = max(lease.longest, known.most)
        if verb == "extend" and not lease.is_loose:
            lease.least = lease.most = known.most if until is None else until

    def _undo(self, verdict: Verdict, index: int) -> None:
        """A verdict that was refused: as if it had not been called, but for what else went on meanwhile."""
        id, version = verdict.call.leases[index]
        verb, known, message = verdict.call.verb, verdict.known[index], self._book.messages.get(id)
        if message is None or known is None:
            return
        message.closings -= verb in ("ack", "final")
        message.unanswered_acks -= verb == "ack"
        message.uncounted -= verb in ("release", "defer")
        lease = message.lease_of(version)
        if lease is not None:
            lease.open_calls -= 1
            if verb == "extend" and not lease.is_loose:
                lease.most = known.most

    def _check_robbed(
        self, called: int, verb: str, message: Tracked, version: int, known: Known, answered_at: int
    ) -> None:
        """The holder of a lease, and nobody else near it: whatever was refused before must have changed nothing."""
        lease = message.lease_of(version)
        if not known.is_alone or known.newest > version or lease is None or lease.calls > known.calls:
            return  # one that was called while this one was under way may have come first
        may_be_gone = message.removed is not None or message.unanswered_removals
        queues = self._book.queues_of(message)
        if may_be_gone or any(self._book.places[queue].removals.is_deleted for queue in queues):
            return
        # A lease that the clock has passed once is over, though the clock was set back since.
        since = min(called, lease.position)
        if answered_at and self._book.clockwork.latest_of(since, answered_at) < known.least:
            what = f"{verb} of {message.id} as version {version} was refused while its lease held"
            message.blame(self._findings, Rule.ROBBED, what)
