"""The results of `holdfast verify`: the counts of a full scan, and the violations that it found."""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import from_bytes, to_uuid
from holdfast.model.invariants.damage import DamageKind, Problem

# Maximum number of violations that a report lists. Further ones are only counted, so that the report of a badly damaged
# store does not fill the memory.
MAX_LISTED = 200

# Called with the name of the current check, the amount of it that is done, and its total.
Progress = Callable[[str, int, int], None]


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken invariant, with the queue and the message that it concerns, if any."""

    damage: DamageKind
    what: str
    queue: str | None = None
    id: str | None = None

    def __str__(self) -> str:
        return (
            " ".join(part for part in (self.queue, self.id) if part)
            + (": " if self.queue or self.id else "")
            + f"{self.what} [{self.damage}]"
        )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a full scan.

    `violations` has the first `MAX_LISTED` violations; `violation_count` counts all of them.
    """

    path: str
    tenants: int
    queues: int
    ready: int
    delayed: int
    in_flight: int
    failed: int
    succeeded: int
    bytes: int
    events: int
    # Payloads whose enqueue was interrupted by a crash, and their bytes. They are not damage; sweeps delete them once
    # the store is in use again.
    unfinished: int
    unfinished_bytes: int
    # Other documents that a crash or a running process has left for the next sweep. They are not damage either.
    leftovers: int = 0
    # Ready messages in the logs of servers that no database has yet.
    logged: int = 0
    # Messages that are still to be moved from the legacy layout. The other counts do not include them.
    legacy: int = 0
    violation_count: int
    violations: list[Violation]

    @property
    def is_clean(self) -> bool:
        """Return whether the scan found no violation."""
        return not self.violation_count

    @property
    def messages(self) -> int:
        """Return the number of messages in all states."""
        return self.ready + self.in_flight + self.failed + self.succeeded


class Findings:
    """The violations and counts found so far by the running checks."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.listed: list[Violation] = []
        self.number = 0
        # Totals of the whole store, by the name of the field in the report.
        self.totals: Counter[str] = Counter()
        self._progress = progress

    def add(self, damage: DamageKind, what: str, queue: object = None, id16: bytes | None = None) -> None:
        """Add a violation. `queue` and the binary id `id16` name the queue and the message that it concerns."""
        self.number += 1
        if len(self.listed) < MAX_LISTED:
            name = None if queue is None else str(queue)
            id = None if id16 is None else format_id(id16)
            self.listed.append(Violation(damage=damage, what=what, queue=name, id=id))

    def add_all(self, problems: Iterable[Problem], queue: object = None, id16: bytes | None = None) -> None:
        """Add a violation for each problem of one record."""
        for damage, what in problems:
            self.add(damage, what, queue, id16)

    def progress(self, what: str, done: int, total: int) -> None:
        """Report progress to the caller of the scan, if it asked for it."""
        if self._progress is not None:
            self._progress(what, done, max(done, total))

    def report(self, path: str) -> Report:
        """Return the report of the finished scan."""
        totals = self.totals
        return Report(
            path=path,
            tenants=totals["tenants"],
            queues=totals["queues"],
            ready=totals["ready"],
            delayed=totals["delayed"],
            in_flight=totals["in_flight"],
            failed=totals["failed"],
            succeeded=totals["succeeded"],
            bytes=totals["bytes"],
            events=totals["events"],
            unfinished=totals["unfinished"],
            unfinished_bytes=totals["unfinished_bytes"],
            leftovers=totals["leftovers"],
            logged=totals["logged"],
            legacy=totals["legacy"],
            violation_count=self.number,
            violations=self.listed,
        )


def format_id(id16: bytes) -> str:
    """Return the id as a UUID, or in hexadecimal if it is not a valid id."""
    try:
        return to_uuid(from_bytes(id16)) if len(id16) == 16 else id16.hex()
    except InvalidArgument:
        return id16.hex()
