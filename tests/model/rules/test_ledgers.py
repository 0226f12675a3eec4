import pytest

from holdfast.model.answers import Delivery, LedgerEntry
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import Receipt
from holdfast.model.rules.ledgers import NONE_CLOSED, check_open, closed_after, closed_by, entry_of


@pytest.mark.parametrize("number", [3, 4])
def test_a_number_at_or_below_the_closed_ones_is_refused(number: int) -> None:
    words = f"ledger number {number} of 'c' is closed: claim with a number above 4"
    with pytest.raises(InvalidArgument, match=words) as refused:
        check_open("c", number, 4)
    assert refused.value.facts["closed_upto"] == 4


def test_a_number_above_the_closed_ones_may_be_claimed_with() -> None:
    check_open("c", 5, 4)
    check_open("c", 0, NONE_CLOSED)


def test_an_ack_closes_the_claims_up_to_its_number_in_order() -> None:
    assert closed_by([7, 2, 5, 3], 5) == [2, 3, 5]


def test_an_ack_of_a_lower_number_opens_nothing_again() -> None:
    assert [closed_after(NONE_CLOSED, 3), closed_after(3, 2)] == [3, 3]


def test_an_entry_counts_the_messages_that_it_no_longer_holds_as_lost() -> None:
    receipts = [Receipt(id, b"t" * 16, 1) for id in (1, 2, 3)]
    held = Delivery(
        snowflake=2,
        receipt=receipts[1],
        payload=b"",
        content_type="x",
        headers={},
        priority=1,
        attempt=1,
        enqueued_at=1,
        lease_expires_at=2,
    )
    assert entry_of(4, 9, receipts, [held]) == LedgerEntry(number=4, claimed_at=9, deliveries=[held], lost=2)
