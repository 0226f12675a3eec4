"""Rules of claim ledgers. A consumer numbers its claims, can read an open one again, and closes them in order."""

from collections.abc import Iterable, Sequence

from holdfast.model.answers import Delivery, LedgerEntry
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import Receipt

# The highest closed number before the first close; every number is above it.
NONE_CLOSED = -1


def check_open(consumer: str, number: int, closed_upto: int) -> None:
    """Raise `InvalidArgument` for a claim whose number is not above the highest closed one."""
    if number <= closed_upto:
        raise InvalidArgument(
            f"ledger number {number} of {consumer!r} is closed: claim with a number above {closed_upto}",
            closed_upto=closed_upto,
        )


def closed_by(numbers: Iterable[int], upto: int) -> list[int]:
    """Return the numbers of the open claims that an ack up to `upto` closes, in order."""
    return sorted(number for number in numbers if number <= upto)


def closed_after(closed_upto: int, upto: int) -> int:
    """Return the highest closed number after an ack. It never decreases: a claim that is closed stays closed."""
    return max(closed_upto, upto)


def entry_of(number: int, claimed_at: int, receipts: Sequence[Receipt], deliveries: list[Delivery]) -> LedgerEntry:
    """Return an open claim as look-ups show it. `deliveries` are those of its receipts that are still valid."""
    lost = len(receipts) - len(deliveries)
    return LedgerEntry(number=number, claimed_at=claimed_at, deliveries=deliveries, lost=lost)
