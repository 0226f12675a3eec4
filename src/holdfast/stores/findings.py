"""What `verify` finds: counts, and each violation by name."""

from collections import Counter
from collections.abc import Callable

import msgspec

from holdfast.model.errors import InvalidArgument
from holdfast.model.events import Event
from holdfast.model.ids import from_bytes, to_uuid
from holdfast.model.message import State

# Violations listed by name; beyond them they are only counted, so that a store in ruins does not fill the memory.
MAX_LISTED = 200

# The states a message may be in after its last event; None: it may be gone.
STATES_AFTER: dict[Event, frozenset[State | None]] = {
    Event.ENQUEUED: frozenset({State.READY}),
    Event.CLAIMED: frozenset({State.IN_FLIGHT}),
    Event.EXTENDED: frozenset({State.IN_FLIGHT}),
    Event.RETRIED: frozenset({State.READY}),
    Event.EXPIRED: frozenset({State.READY}),
    Event.RELEASED: frozenset({State.READY}),
    Event.REDRIVEN: frozenset({State.READY}),
    Event.MOVED: frozenset({State.READY, State.FAILED}),
    Event.FAILED: frozenset({State.FAILED}),
    Event.SUCCEEDED: frozenset({State.SUCCEEDED, None}),
    Event.REMOVED: frozenset({None}),
}

# What is being checked, how much of it is done, and how much there is in all.
Progress = Callable[[str, int, int], None]


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    queue: str | None = None
    id: str | None = None

    def __str__(self) -> str:
        return (
            " ".join(part for part in (self.queue, self.id) if part)
            + (": " if self.queue or self.id else "")
            + self.what
        )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a full scan found. `violations` names the first of them, `violation_count` counts all."""

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
    # Payloads whose enqueue a crash cut off, and their bytes: no damage, and deleted once the store is in use again.
    unfinished: int
    unfinished_bytes: int
    # Other documents that a crash, or a process at work, has left for the next sweep: no damage either.
    leftovers: int = 0
    violation_count: int
    violations: list[Violation]

    @property
    def is_clean(self) -> bool:
        return not self.violation_count

    @property
    def messages(self) -> int:
        return self.ready + self.in_flight + self.failed + self.succeeded


class Findings:
    """Collects violations and counts while the checks run."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.listed: list[Violation] = []
        self.number = 0
        # Of the whole store, by the names of the report's fields.
        self.totals: Counter[str] = Counter()
        self._progress = progress

    def add(self, what: str, queue: object = None, id16: bytes | None = None) -> None:
        self.number += 1
        if len(self.listed) < MAX_LISTED:
            name = None if queue is None else str(queue)
            self.listed.append(Violation(what=what, queue=name, id=None if id16 is None else spell(id16)))

    def progress(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, max(done, total))

    def report(self, path: str) -> Report:
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
            violation_count=self.number,
            violations=self.listed,
        )


def spell(id16: bytes) -> str:
    """The id as people know it; what is no id of ours in hexadecimal."""
    try:
        return to_uuid(from_bytes(id16)) if len(id16) == 16 else id16.hex()
    except InvalidArgument:
        return id16.hex()
