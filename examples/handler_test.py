"""Handlers under test: in-memory queues, a clock moved by hand, no server and no sleeping.

Needs holdfast[testing]. pytest runs it (`asyncio_mode = "auto"`), and so does `python handler_test.py`.
"""

import asyncio

import holdfast
from holdfast.testing import HandlerTest

worker = holdfast.Worker("http://localhost:7077")  # not opened in a test


@worker.handler("signups", retries=1, backoff="1m")
async def welcome(address: str, message: holdfast.Message) -> None:
    if message.attempt == 1:
        raise ConnectionError("no answer")
    await worker.client.queue("mail").enqueue({"to": address})


async def test_a_signup_is_tried_again_within_a_minute_and_sends_one_mail() -> None:
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("signups", "ada@example.org")
        await t.run()
        t.assert_retried(id, "no answer")

        await t.advance("1m")
        await t.run()
        t.assert_acked(id)
        t.assert_enqueued("mail", {"to": "ada@example.org"}, count=1)


if __name__ == "__main__":
    asyncio.run(test_a_signup_is_tried_again_within_a_minute_and_sends_one_mail())
    print("passed")
