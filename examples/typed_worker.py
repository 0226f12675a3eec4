"""A worker whose handler takes a typed payload.

The payload is decoded into the annotated type: a dataclass here; msgspec and pydantic types work the same. One that
does not fit goes to the dead letters with the reason, and the handler is not called. An exception is a failed attempt:
the message comes back after a backoff.
"""

from dataclasses import dataclass

import holdfast


@dataclass
class Order:
    number: int
    cents: int


# In production `holdfast.Worker("http://localhost:7077")`, in a process of its own.
hf = holdfast.open("memory://")
worker = holdfast.Worker(hf)


@worker.handler("orders", concurrency=4, lease="30s", timeout="5m", retries=2, backoff="100ms")
async def charge(order: Order, message: holdfast.Message) -> None:
    if order.number == 8 and message.attempt == 1:
        raise ConnectionError("the bank did not answer")
    # message.version rises with each delivery: a bank that is given it can refuse a worker that comes too late.
    print(f"charged order {order.number}: {order.cents} cents, attempt {message.attempt}")


@worker.after
async def stop_when_empty(message: holdfast.Message, outcome: holdfast.Outcome) -> None:
    print(f"{outcome.kind}: {outcome.error or 'fine'}")
    left = await worker.client.queue("orders").stats()
    if not (left.ready or left.delayed or left.in_flight):
        worker.stop()


with hf:
    orders = hf.queue("orders")
    orders.enqueue([Order(7, 1_200), Order(8, 990), {"number": "nine"}])
    worker.run()  # until SIGTERM, Ctrl-C or worker.stop()
    for letter in orders.list(state="failed"):
        print(f"dead letter: {letter.last_error}")
