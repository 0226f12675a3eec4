"""A producer that may be started again at any time: with a key, the same message is enqueued once.

Within the queue's window (24 hours unless set) a key that was seen answers the id of the first message, also after that
message was acked.
"""

import holdfast


def import_orders(queue: holdfast.Queue, upto: int) -> None:
    """Each run begins at the start: it does not know how far the last one came."""
    orders = [holdfast.NewMessage({"order": number}, key=f"order-{number}") for number in range(1, upto + 1)]
    ids = queue.enqueue(orders)
    print(f"enqueued {sum(not id.duplicate for id in ids)}, known already {sum(id.duplicate for id in ids)}")


with holdfast.open("memory://") as hf:
    orders = hf.queue("orders")
    import_orders(orders, 3)
    orders.ack(orders.claim(limit=2))
    import_orders(orders, 5)
    print(f"ready: {orders.stats().ready}")
