"""Claim ledgers: a consumer numbers its claims, reads an open one again by its number, and closes them in order."""

from collections.abc import Iterable, Sequence

from holdfast.model.answers import Delivery, LedgerEntry
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import Receipt

# Before the first close: every number is above it.
NONE_CLOSED = -1


def check_open(consumer: str, number: int, closed_upto: int) -> None:
    """Refuse a claim whose number is at or below the highest one that was closed."""
    if number <= closed_upto:
        raise InvalidArgument(
            f"ledger number {number} of {consumer!r} is closed: claim with a number above {closed_upto}",
            closed_upto=closed_upto,
        )


def closed_by(numbers: Iterable[int], upto: int) -> list[int]:
    """Return the open claims that an ack up to this number closes, in order."""
    return sorted(number for number in numbers if number <= upto)


def closed_after(closed_upto: int, upto: int) -> int:
    """Return the highest closed number after an ack: a lower one than before opens nothing again."""
    return max(closed_upto, upto)


def entry_of(number: int, claimed_at: int, receipts: Sequence[Receipt], deliveries: list[Delivery]) -> LedgerEntry:
    """Return an open claim as it is shown: the deliveries that are still held, and the number of the lost ones."""
    lost = len(receipts) - len(deliveries)
    return LedgerEntry(number=number, claimed_at=claimed_at, deliveries=deliveries, lost=lost)
