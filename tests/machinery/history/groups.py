"""R10: a group is delivered in order of id, one batch in flight at a time."""

from collections import defaultdict
from dataclasses import dataclass, field

from sortedcontainers import SortedDict

from tests.machinery.history.rules import Findings, Rule
from tests.machinery.history.tracking import Book, Tracked


@dataclass(slots=True)
class _Group:
    # By id: those that may still be there. One whose end is only possible leaves when it is in the way, and comes back
    # with its next delivery, so that no claim looks at more than a few.
    waiting: "SortedDict[int, Tracked]" = field(default_factory=SortedDict)
    in_flight: dict[int, Tracked] = field(default_factory=dict)


class Groups:
    def __init__(self, book: Book, findings: Findings) -> None:
        self._book = book
        self._findings = findings
        self._groups: defaultdict[tuple[str, str], _Group] = defaultdict(_Group)

    def add(self, message: Tracked) -> None:
        if message.item.group is not None and self._book.is_surely_in(message, message.queue):
            self._groups[message.queue, message.item.group].waiting[message.id] = message

    def end(self, message: Tracked) -> None:
        if message.item.group is not None:
            for queue in self._book.queues_of(message):
                group = self._groups[queue, message.item.group]
                group.waiting.pop(message.id, None)
                group.in_flight.pop(message.id, None)

    def deliver(self, queue: str, batch: list[Tracked], called: int, latest: float) -> None:
        """Check and note the messages of one group that one claim delivered: the claim's line and its latest time."""
        name = batch[0].item.group or ""
        group = self._groups[queue, name]
        ids = [message.id for message in batch]
        if ids != sorted(ids):
            self._findings.broke(Rule.GROUP_ORDER, f"group {name} was delivered as {ids}")
        self._check_earlier(group, name, ids, called, latest)
        self._check_in_flight(group, name, ids, called, latest)
        for message in batch:
            # A message that may be elsewhere by now holds up nobody here.
            if message.ended is None and self._book.is_surely_in(message, queue):
                group.waiting[message.id] = group.in_flight[message.id] = message

    def _check_earlier(self, group: _Group, name: str, ids: list[int], called: int, latest: float) -> None:
        gone = []
        for id in group.waiting.irange(maximum=ids[-1], inclusive=(True, False)):
            other = group.waiting[id]
            if id in ids:
                continue
            if self._book.may_have_ended(other, latest):
                if not other.closings:  # an ack may yet be refused
                    gone.append(id)
            elif other.answered is not None and other.answered < called:
                self._findings.broke(Rule.GROUP_ORDER, f"{ids[-1]} of group {name} was delivered before {id}")
        for id in gone:
            del group.waiting[id]

    def _check_in_flight(self, group: _Group, name: str, ids: list[int], called: int, latest: float) -> None:
        over = []
        for id, other in group.in_flight.items():
            lease = other.lease
            is_over = lease is None or lease.least <= self._book.clockwork.reached(lease.position, latest)
            if lease is None or (is_over and not lease.open_calls):
                over.append(id)
            elif (
                id not in ids
                and lease.position < called
                and not is_over
                and not self._book.may_have_ended(other, latest)
            ):
                self._findings.broke(Rule.GROUP_ORDER, f"{ids} of group {name} was delivered while {id} was in flight")
        for id in over:
            del group.in_flight[id]
