"""The orders in which a queue's messages are looked for."""

import pytest

from holdfast.model.message import State
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.indexes.queue_orders import QueueOrders


def ready(priority: int, visible_at: int) -> Life:
    return Life(state=State.READY, priority=priority, visible_at=visible_at)


def in_order(orders: QueueOrders) -> list[int]:
    return [id for level in orders.levels.values() for _, id in level]


def test_a_queue_that_ran_empty_has_no_next_claim() -> None:
    orders = QueueOrders()
    orders.add_to_orders(1, ready(100, 5), None, 0)
    assert orders.next_at() == 5
    orders.remove_from_orders(1, ready(100, 5), None, 0)
    assert orders.next_at() is None
    assert in_order(orders) == []


def test_a_queue_that_ran_empty_orders_its_next_messages_by_priority() -> None:
    orders = QueueOrders()
    orders.add_to_orders(1, ready(100, 5), None, 0)
    orders.remove_from_orders(1, ready(100, 5), None, 0)
    orders.add_to_orders(2, ready(200, 3), None, 0)
    orders.add_to_orders(3, ready(50, 9), None, 0)
    orders.add_to_orders(4, ready(100, 7), None, 0)
    assert in_order(orders) == [3, 4, 2]
    assert orders.next_at() == 3


@pytest.mark.parametrize("emptied_first", [0, 255])
def test_many_priorities_leave_at_most_one_empty_level(emptied_first: int) -> None:
    orders = QueueOrders()
    priorities = range(256) if emptied_first == 0 else range(255, -1, -1)
    for priority in priorities:
        orders.add_to_orders(priority, ready(priority, 0), None, 0)
    for priority in priorities:
        orders.remove_from_orders(priority, ready(priority, 0), None, 0)
        assert sum(1 for level in orders.levels.values() if not level) <= 1
    assert len(orders.levels) <= 1
    assert orders.next_at() is None


def test_the_next_claim_is_due_when_a_lease_ends_or_a_head_of_a_group_expires() -> None:
    orders = QueueOrders()
    orders.add_to_orders(1, ready(100, 50), None, 0)
    orders.add_to_orders(2, Life(state=State.IN_FLIGHT), None, 40)
    assert orders.next_at() == 40
    orders.add_to_orders(3, Life(state=State.READY, visible_at=60, expires_at=30), "group", 0)
    assert orders.next_at() == 30
