import pytest
from msgspec.structs import replace

from holdfast.model.errors import Draining, QueueNotFound
from holdfast.model.events import Event
from holdfast.model.message import Envelope, State
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Lease, Life
from holdfast.stores.logic.results import check_accepts, event_of
from holdfast.stores.values import QueueRow

REF = QueueRef("acme", "mail")
ENVELOPE = Envelope(id=7, enqueued_at=1, payload=b"abc", headers={"a": "bc"}, given_correlation_id="c")
LEASE = Lease(token=bytes(16), claimed_at=5, expires_at=9, ends_at=9)
READY = Life(attempt=1, version=1, priority=3)
IN_FLIGHT = Life(state=State.IN_FLIGHT, attempt=2, version=2, priority=3, lease=LEASE)


@pytest.mark.parametrize(
    ("before", "after", "attempt", "claimed_at"),
    [(READY, None, 1, None), (READY, IN_FLIGHT, 2, 5), (IN_FLIGHT, READY, 1, 5), (IN_FLIGHT, None, 2, 5)],
)
def test_an_event_has_the_state_after_it_and_the_lease_that_it_ends(
    before: Life, after: Life | None, attempt: int, claimed_at: int | None
) -> None:
    event = event_of(Event.RETRIED, REF, ENVELOPE, before, 8, after, reason="r", error="e")
    assert (event.at, event.event, event.tenant, event.queue) == (8, Event.RETRIED, "acme", "mail")
    assert (event.snowflake, event.given_correlation_id, event.enqueued_at, event.bytes) == (7, "c", 1, 6)
    assert (event.attempt, event.priority, event.claimed_at) == (attempt, 3, claimed_at)
    assert (event.reason, event.error) == ("r", "e")


def test_a_queue_takes_new_messages_unless_it_is_being_deleted_or_missing() -> None:
    row = QueueRow(ref=REF, tenant_id=1, queue_id=1)
    check_accepts(REF, row, auto_create=False)
    check_accepts(REF, None, auto_create=True)
    with pytest.raises(QueueNotFound):
        check_accepts(REF, None, auto_create=False)
    with pytest.raises(Draining):
        check_accepts(REF, replace(row, drain_until=5), auto_create=True)
