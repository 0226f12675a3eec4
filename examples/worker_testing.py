"""Handlers under test: queues in memory, a clock moved by hand, no threads and no sleeping."""

import asyncio

import holdfast
from holdfast.testing import HandlerTest

worker = holdfast.Worker("http://localhost:7077")  # not opened in a test


@worker.handler("payments", retries=3, backoff="1m")
async def charge(order: dict[str, int], message: holdfast.Message) -> None:
    if message.attempt == 1:
        raise ConnectionError("the bank does not answer")
    await worker.client.queue("receipts").enqueue({"paid": order["amount"]})


async def test_a_payment_is_tried_again_and_then_has_a_receipt() -> None:
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("payments", {"amount": 7})
        await t.run()
        t.assert_retried(id, "ConnectionError: the bank does not answer")

        await t.advance("1m")
        await t.run()
        t.assert_acked(id)
        t.assert_enqueued("receipts", {"paid": 7}, count=1)


async def test_a_payment_without_numbers_is_a_dead_letter() -> None:
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("payments", {"amount": "seven"})
        await t.run()
        t.assert_failed(id, "Expected `int`, got `str`")


if __name__ == "__main__":  # pytest finds them by their names
    asyncio.run(test_a_payment_is_tried_again_and_then_has_a_receipt())
    asyncio.run(test_a_payment_without_numbers_is_a_dead_letter())
    print("passed")
