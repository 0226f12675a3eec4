"""After a caller has left, messages that were not sent to it can be claimed again at once.

The clock stands still in these tests: no lease runs out, so a message that is claimable again was given back.
"""

import asyncio
import json
import random
from typing import Any

import pytest

from holdfast.doors.sockets import socket_reading
from tests.doors.serving import Server
from tests.waiting import until

QUEUE = {"tenant": "acme", "queue": "jobs"}
# More than the buffers between two sockets of one machine hold.
LARGE = "x" * 900_000


class Caller:
    """A connection that can be cut at any moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def send(cls, server: Server, path: str, document: Any, **headers: str) -> "Caller":
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
        body = json.dumps(document).encode()
        head = {"Host": host, "Content-Length": str(len(body)), **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        writer.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return cls(reader, writer)

    def send_again(self, path: str, document: Any) -> None:
        """Send a request without waiting for the response to the one before."""
        body = json.dumps(document).encode()
        self._writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)))
        self._writer.write(body)

    async def leave(self) -> None:
        self._writer.transport.abort()

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def chunk(self) -> bytes:
        """One part of an answer that comes in parts."""
        size = int(await self.reader.readline(), 16)
        part = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return part


async def waiters(server: Server, expected: int) -> None:
    """Wait until this number of claims wait."""
    await until(lambda: server.core.dispatcher.count_tenant_waiters("acme") == expected)


async def claimed_at_once(server: Server, count: int = 1, **options: Any) -> list[Any]:
    """Claim as another caller while the clock stands still."""
    messages: list[Any] = []
    async with asyncio.timeout(60):
        while len(messages) < count:
            found = await server.dequeue(count - len(messages), **options)
            messages += found
            await asyncio.sleep(0 if found else 0.01)
    return messages


async def test_a_caller_that_leaves_while_it_waits_is_forgotten(stored: Server) -> None:
    caller = await Caller.send(stored, "/v1/queue/dequeue", {**QUEUE, "wait_ms": None})
    await waiters(stored, 1)
    await caller.leave()
    await waiters(stored, 0)
    [id] = await stored.enqueue("work")
    [message] = await claimed_at_once(stored)
    assert (message["id"], message["attempt"]) == (id, 1)


@pytest.mark.parametrize("path", ["/v1/queue/dequeue", "/v1/queue/subscribe"])
async def test_requests_sent_ahead_do_not_hide_that_the_caller_of_a_waiting_one_left(
    stored: Server, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads no further than the first of them."""
    monkeypatch.setattr(socket_reading, "CHECK_S", 0.01)
    for number in range(1, 4):
        caller = await Caller.send(stored, path, {**QUEUE, "wait_ms": None})
        await waiters(stored, 1)
        for _ in range(number):
            caller.send_again("/v1/queue/enqueue", {**QUEUE, "messages": [{"payload": "x" * 1_000}]})
            await asyncio.sleep(0.01)
        await caller.leave()
        await waiters(stored, 0)
    [id] = await stored.enqueue("work")
    [message] = await claimed_at_once(stored)
    assert (message["id"], message["attempt"]) == (id, 1)


async def test_a_delivery_that_meets_a_leaving_caller_is_claimable_again_uncounted(stored: Server) -> None:
    """The enqueue and the leaving reach the server together."""
    for number in range(30):
        caller = await Caller.send(stored, "/v1/queue/dequeue", {**QUEUE, "wait_ms": None})
        await waiters(stored, 1)
        await caller.leave()
        [id] = await stored.enqueue(number)
        [message] = await claimed_at_once(stored)
        assert (message["id"], message["attempt"]) == (id, 1)
        await stored.post("/v1/queue/ack", {**QUEUE, "receipts": [message["receipt"]]})


@pytest.mark.slow
async def test_a_caller_that_leaves_at_any_moment_holds_nothing_it_was_not_sent(stored: Server) -> None:
    dice = random.Random(7)
    for number in range(150):
        stored.requests.seen.clear()
        caller = await Caller.send(stored, "/v1/queue/dequeue", {**QUEUE, "wait_ms": None})
        enqueuing = asyncio.create_task(stored.enqueue(number))
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        if dice.random() < 0.3:
            await asyncio.sleep(dice.uniform(0, 0.01))
        await caller.leave()
        [id] = await enqueuing
        async with asyncio.timeout(60):
            while not (outcomes := [each[2] for each in stored.requests.seen if each[0].startswith("claim")]):
                await asyncio.sleep(0.002)
        if outcomes == ["ok"] and (await stored.get(f"/v1/tenants/acme/queues/jobs/messages/{id}")).json["state"] == (
            "in_flight"
        ):
            # It was sent in time, and is the caller's until its lease ends.
            await stored.delete(f"/v1/tenants/acme/queues/jobs/messages/{id}")
            continue
        [message] = await claimed_at_once(stored)
        assert (message["id"], message["attempt"]) == (id, 1)
        await stored.post("/v1/queue/ack", {**QUEUE, "receipts": [message["receipt"]]})


async def test_an_answer_that_was_not_taken_whole_is_given_back_whole(stored: Server) -> None:
    ids = [id for _ in range(16) for id in await stored.enqueue(LARGE)]
    caller = await Caller.send(stored, "/v1/queue/dequeue", {**QUEUE, "limit": 16})
    await caller.head()
    await caller.leave()
    messages = await claimed_at_once(stored, 16)
    assert sorted(each["id"] for each in messages) == sorted(ids)
    assert {each["attempt"] for each in messages} == {1}


async def test_of_an_answer_in_parts_what_was_sent_stays_and_the_rest_is_given_back(stored: Server) -> None:
    ids = [id for _ in range(16) for id in await stored.enqueue(LARGE)]
    caller = await Caller.send(stored, "/v1/queue/dequeue", {**QUEUE, "limit": 16}, Accept="multipart/mixed")
    await caller.head()
    first = await caller.chunk()
    assert ids[0].encode() in first
    await caller.leave()
    await until(lambda: not (not stored.requests.seen or stored.requests.seen[-1][::2] != ("claim", "left")))
    rest = [each["id"] for each in await claimed_at_once(stored, 16 - await in_flight(stored))]
    assert ids[0] not in rest
    assert 16 - len(rest) < 16 - 2, "the connection cannot have taken all but a few"


async def in_flight(server: Server) -> int:
    """Once what was given back is back."""
    before = -1
    while True:
        now = int((await server.get("/v1/queue/stats", **QUEUE)).json["in_flight"])
        if now == before:
            return now
        before = now
        await asyncio.sleep(0.1)


# --- Subscribers ---------------------------------------------------------------------------------------------


async def test_what_a_subscriber_was_sent_stays_its_own(stored: Server) -> None:
    subscriber = await Caller.send(stored, "/v1/queue/subscribe", {**QUEUE, "prefetch": 2})
    await subscriber.head()
    ids = await stored.enqueue(1, 2, 3)
    sent = [json.loads(await subscriber.chunk()) for _ in range(2)]
    await subscriber.leave()
    [message] = await claimed_at_once(stored)
    assert [each["id"] for each in sent] == ids[:2]
    assert message["id"] == ids[2]
    assert await in_flight(stored) == 3
    answer = await stored.post("/v1/queue/ack", {**QUEUE, "receipts": [each["receipt"] for each in sent]})
    assert answer.status == 200


async def test_what_a_subscriber_was_sent_is_released_when_it_leaves_if_it_asked_for_that(stored: Server) -> None:
    subscriber = await Caller.send(stored, "/v1/queue/subscribe", {**QUEUE, "release_on_leave": True})
    await subscriber.head()
    ids = await stored.enqueue(1, 2)
    for _ in ids:
        await subscriber.chunk()
    await subscriber.leave()
    messages = await claimed_at_once(stored, 2)
    assert [each["id"] for each in messages] == ids
    assert {each["attempt"] for each in messages} == {2}
    info = (await stored.get(f"/v1/tenants/acme/queues/jobs/messages/{ids[0]}")).json
    assert (info["releases"], info["failures"], info["expiries"]) == (1, 0, 0)


async def test_a_subscriber_that_leaves_while_it_waits_is_forgotten(stored: Server) -> None:
    subscriber = await Caller.send(stored, "/v1/queue/subscribe", QUEUE)
    await subscriber.head()
    await waiters(stored, 1)
    await subscriber.leave()
    await waiters(stored, 0)
    [id] = await stored.enqueue("work")
    [message] = await claimed_at_once(stored)
    assert (message["id"], message["attempt"]) == (id, 1)


async def test_a_subscriber_that_does_not_read_is_sent_no_more_than_the_connection_takes(stored: Server) -> None:
    ids = [id for _ in range(16) for id in await stored.enqueue(LARGE)]
    subscriber = await Caller.send(stored, "/v1/queue/subscribe", {**QUEUE, "prefetch": 16, "limit": 16})
    await subscriber.head()
    await subscriber.leave()
    await until(lambda: not (not stored.requests.seen or stored.requests.seen[-1][::2] != ("subscribe", "left")))
    held = await in_flight(stored)
    assert held < len(ids) - 2
    back = await claimed_at_once(stored, len(ids) - held)
    assert {each["attempt"] for each in back} == {1}


async def test_a_subscriber_gets_more_as_it_settles_and_no_more_than_its_prefetch(stored: Server) -> None:
    subscriber = await Caller.send(stored, "/v1/queue/subscribe", {**QUEUE, "prefetch": 1})
    await subscriber.head()
    ids = await stored.enqueue("a", "b", "c")
    for id, verdict in zip(ids, ("ack", "nack", "release"), strict=True):
        message = json.loads(await subscriber.chunk())
        assert message["id"] == id
        assert await in_flight(stored) == 1
        settled = {"receipt": message["receipt"]} | ({"delay_ms": 60_000} if verdict == "nack" else {})
        if verdict == "release":
            await stored.post("/v1/tenants/acme/queues/jobs/pause")
        answer = await stored.post(f"/v1/queue/{verdict}", {**QUEUE, "receipts": [settled]})
        assert answer.status == 200, answer
    await subscriber.leave()


async def test_an_extension_keeps_a_subscriber_s_room_taken(stored: Server, clock: Any) -> None:
    subscriber = await Caller.send(stored, "/v1/queue/subscribe", {**QUEUE, "prefetch": 1, "lease_ms": 1_000})
    await subscriber.head()
    first, second = await stored.enqueue("a", "b")
    message = json.loads(await subscriber.chunk())
    await stored.post("/v1/queue/extend", {**QUEUE, "receipts": [message["receipt"]], "lease_ms": 5_000})
    reading = asyncio.create_task(subscriber.chunk())
    clock.advance(1_500)
    await asyncio.sleep(0.1)
    assert not reading.done()
    clock.advance(3_501)
    # Its lease ended: there is room, for the message itself first of all.
    again = json.loads(await asyncio.wait_for(reading, 60))
    assert again["id"] in (first, second)
    await subscriber.leave()
