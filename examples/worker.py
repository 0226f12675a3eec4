"""A worker: two handlers, one after the other, until everything is shipped."""

import msgspec

import holdfast

worker = holdfast.Worker("memory://")  # or ./data, or http://localhost:7077


class Order(msgspec.Struct):
    number: int
    amount: int


@worker.handler("payments", tenant="acme", concurrency=8, lease="30s", timeout="5m", retries=5)
async def charge(order: Order, message: holdfast.Message) -> None:
    if order.number == 8 and message.attempt == 1:
        raise holdfast.Retry("the bank is busy", delay="100ms")
    print(f"charged order {order.number} on attempt {message.attempt}, fencing version {message.version}")
    await worker.client.queue("shipping").enqueue({"number": order.number, "amount": order.amount}, key=str(message.id))


@worker.handler("shipping")
def ship(order: Order) -> None:  # a plain function runs in a thread
    print(f"shipped order {order.number}")
    shipped.add(order.number)
    if shipped == {7, 8}:
        worker.stop()


shipped: set[int] = set()


@worker.on_error
def tell(message: holdfast.Message, outcome: holdfast.Outcome) -> None:
    print(f"{message.queue}: {outcome.kind}: {outcome.error}")


@worker.on_start
async def feed(worker: holdfast.Worker) -> None:
    payments = worker.client.queue("payments", tenant="acme")
    await payments.enqueue([{"number": 7, "amount": 100}, {"number": 8, "amount": 250}, {"number": "nine"}])


worker.run()  # until stop(), SIGTERM or SIGINT
