"""The Cap'n Proto door with a client of pycapnp and the schema alone."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import capnp
import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.doors.capnp.connection import MAX_UNFINISHED
from holdfast.testing import ManualClock
from holdfast.wire.requests import Nothing
from tests.doors.capnp_serving import CapnpServer, serve_capnp
from tests.doors.serving import Tokens, caller

SCHEMA = capnp.load(str(Path(holdfast.__file__).parent / "wire" / "capnp" / "holdfast.capnp"))


@asynccontextmanager
async def stock_client(server: CapnpServer) -> AsyncIterator[Any]:
    """Yield a client built as in the manual of pycapnp."""
    stream = await capnp.AsyncIoStream.create_connection(host="127.0.0.1", port=server.port)
    client = capnp.TwoPartyClient(stream)
    try:
        yield client.bootstrap().cast_as(SCHEMA.Queues)
    finally:
        stream.close()


def ref(queue: str = "jobs", tenant: str = "acme") -> dict[str, str]:
    return {"tenant": tenant, "queue": queue}


@pytest.mark.spec("8.5")
async def test_a_stock_client_adds_polls_extends_and_acks() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        assert (await queues.hello()).version == 1

        added = await queues.add(ref=ref(), items=[b"one", b"two"])
        assert not added._has("error")
        assert [len(id) for id in added.ids] == [16, 16]

        polled = await queues.poll(ref=ref(), numItems=10, leaseMs=60_000)
        assert [message.contents for message in polled.messages] == [b"one", b"two"]
        assert [message.id for message in polled.messages] == list(added.ids)

        first, second = polled.messages
        extended = await queues.extend(ref=ref(), messageId=first.id, extendMs=90_000, receipt=first.receipt)
        assert extended.results[0].leaseExpiresAt > first.leaseExpiresAt
        assert (await queues.ack(ref=ref(), receipt=first.receipt)).results[0].ok
        nacked = await queues.nack(ref=ref(), receipt=second.receipt, error="boom", delayMs=0)
        assert nacked.results[0].state == "ready"
        stats = (await queues.stats(ref=ref())).stats
        assert (stats.queue, stats.ready, stats.inFlight) == ("jobs", 1, 0)


async def test_options_hold_for_all_items_or_for_each() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        await queues.add(ref=ref(), items=[b"a", b"b"], options=[{"priority": 9}])
        await queues.add(ref=ref(), items=[b"c", b"d"], options=[{"priority": 5}, {"priority": 7, "key": "k"}])
        again = await queues.add(ref=ref(), items=[b"d"], options=[{"key": "k"}])
        assert list(again.duplicates) == [True]

        polled = await queues.poll(ref=ref(), numItems=10)
        assert [(each.contents, each.priority) for each in polled.messages] == [
            (b"c", 5),
            (b"d", 7),
            (b"a", 9),
            (b"b", 9),
        ]

        refused = await queues.add(ref=ref(), items=[b"a", b"b", b"c"], options=[{}, {}])
        assert refused.error.code == "invalid_argument"
        assert json.loads(refused.error.facts) == {"field": "options"}


@pytest.mark.spec("8.5")
async def test_a_request_without_a_ref_reaches_the_default_queue() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        await queues.add(items=[b"x"])

        assert (await server.core.inspection.stats(holdfast.QueueRef(), Nothing())).ready == 1
        assert (await queues.poll()).messages[0].contents == b"x"


@pytest.mark.spec("8.5")
async def test_a_bare_message_id_is_enough_for_whoever_holds_the_message() -> None:
    callers = {"one": caller("acme", "read", "write", subject="one"), "two": caller("acme", "read", subject="two")}
    async with (
        serve_capnp(SystemClock(), identity=Tokens(callers)) as server,
        stock_client(server) as one,
        stock_client(server) as two,
    ):
        for queues, token in ((one, "one"), (two, "two")):
            assert not (await queues.authenticate(token=token))._has("error")
        [id] = (await one.add(items=[b"x"])).ids
        await one.poll()

        assert (await two.ack(messageId=id)).error.code == "stale_lease"
        assert (await one.ack(messageId=id)).results[0].ok
        assert (await one.ack(messageId=id)).error.code == "stale_lease"
        assert (await one.ack(messageId=b"short")).error.code == "invalid_argument"
        assert (await one.ack()).error.code == "invalid_argument"


@pytest.mark.spec("3.4")
async def test_a_message_is_removed_by_whoever_holds_it() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        [id] = (await queues.add(items=[b"x"])).ids
        assert (await queues.remove(messageId=id)).error.code == "stale_lease"
        [message] = (await queues.poll()).messages

        assert (await queues.remove(messageId=id, receipt=message.receipt)).results[0].ok
        assert (await queues.stats()).stats.inFlight == 0


@pytest.mark.spec("8.5")
async def test_queues_are_created_listed_and_deleted() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        created = await queues.createQueue(ref=ref("new"), policy=json.dumps({"max_retries": 7}).encode())
        assert not created._has("error")
        assert (await queues.createQueue(ref=ref("new"), policy=b'{"nonsense": 1}')).error.code == "invalid_argument"
        assert [each.queue for each in (await queues.listQueues(tenant="acme")).queues] == ["new"]
        policy = await queues.operate(ref=ref("new"), operation="policy")
        assert json.loads(policy.answer)["max_retries"] == 7

        assert not (await queues.deleteQueue(ref=ref("new"), forceAfterMs=0))._has("error")
        assert (await queues.add(ref=ref("gone"), items=[b"x"])).ids
        assert (await queues.operate(operation="nonsense")).error.code == "invalid_argument"
        refused = await queues.operate(operation="get", arguments=b'{"id": 1, "nonsense": 2}')
        assert refused.error.code == "invalid_argument"


async def test_identity_is_asked_for_on_each_connection() -> None:
    callers = {"good": caller("acme", "read", "write", subject="one")}
    async with serve_capnp(SystemClock(), identity=Tokens(callers)) as server:
        async with stock_client(server) as queues, stock_client(server) as other:
            assert (await queues.add(items=[b"x"])).error.code == "unauthenticated"
            assert (await queues.authenticate(token="bad")).error.code == "unauthenticated"
            assert not (await queues.authenticate(token="good"))._has("error")
            assert not (await queues.add(items=[b"x"]))._has("error")
            assert (await queues.add(ref=ref(tenant="other"), items=[b"x"])).error.code == "forbidden"
            assert (await other.poll()).error.code == "unauthenticated"
            # One that is not good leaves nobody known.
            assert (await queues.authenticate(token="bad")).error.code == "unauthenticated"
            assert (await queues.poll()).error.code == "unauthenticated"
        # Without a tenant the caller's own is meant.
        assert (await server.core.inspection.stats(holdfast.QueueRef("acme"), Nothing())).ready == 1
        assert ("enqueue", None, "forbidden") in server.requests.seen
        assert ("enqueue", holdfast.QueueRef("acme"), "ok") in server.requests.seen


async def test_the_python_client_says_who_it_is() -> None:
    callers = {"good": caller("acme", "read", "write"), "newer": caller("acme", "read", "write", subject="newer")}
    tokens = ["good"]
    async with serve_capnp(SystemClock(), identity=Tokens(callers)) as server:
        async with holdfast.open_async(server.url, token=lambda: tokens[-1], retries=0) as hf:
            await hf.queue("jobs", tenant="acme").enqueue("x")
            tokens.append("newer")
            [message] = await hf.queue("jobs", tenant="acme").claim()
            assert (await hf.queue("jobs", tenant="acme").get(message.id)).owner == "newer"
            with pytest.raises(holdfast.Forbidden):
                await hf.queue("jobs", tenant="other").enqueue("x")
        async with holdfast.open_async(server.url, token="bad", retries=0) as hf:
            with pytest.raises(holdfast.Unauthenticated):
                await hf.queue("jobs", tenant="acme").enqueue("x")


async def test_a_poll_waits_for_what_comes() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        waiting = asyncio.ensure_future(_sent(queues.poll(waitMs=30_000)))
        await _until(lambda: server.core.dispatcher.count_waiters(holdfast.QueueRef()) == 1)
        await queues.add(items=[b"x"])

        assert (await waiting).messages[0].contents == b"x"


async def test_a_poll_that_is_left_is_answered_at_once() -> None:
    async with serve_capnp(ManualClock()) as server, stock_client(server) as queues:
        waiting = asyncio.ensure_future(_sent(queues.poll(waitMs=SCHEMA.forEver, ticket=7)))
        await _until(lambda: server.core.dispatcher.count_waiters(holdfast.QueueRef()) == 1)
        assert (await queues.poll(waitMs=1, ticket=7)).error.code == "invalid_argument"
        await queues.leave(ticket=8)
        await queues.leave(ticket=7)

        assert len((await waiting).messages) == 0


async def test_a_client_that_leaves_while_it_waits_gives_its_delivery_back() -> None:
    async with serve_capnp(ManualClock()) as server:
        async with stock_client(server) as queues:
            waiting = asyncio.ensure_future(_sent(queues.poll(waitMs=SCHEMA.forEver)))
            await _until(lambda: server.core.dispatcher.count_waiters(holdfast.QueueRef()) == 1)
        with pytest.raises(capnp.KjException):
            await waiting
        await _until(lambda: server.core.dispatcher.count_waiters(holdfast.QueueRef()) == 0)
        async with holdfast.open_async(server.url, retries=0) as hf:
            await hf.queue().enqueue("x")
            assert (await hf.queue().stats()).ready == 1
            [message] = await hf.queue().claim()
            assert message.attempt == 1


async def test_a_poll_whose_promise_is_dropped_ends() -> None:
    async with serve_capnp(ManualClock()) as server, stock_client(server) as queues:
        waiting = asyncio.ensure_future(_sent(queues.poll(waitMs=SCHEMA.forEver)))
        await _until(lambda: server.core.dispatcher.count_waiters(holdfast.QueueRef()) == 1)
        waiting.cancel()

        await _until(lambda: server.core.dispatcher.count_waiters(holdfast.QueueRef()) == 0)
        await _until(lambda: ("claim_wait", holdfast.QueueRef(), "left") in server.requests.seen)


async def test_deliveries_in_an_answer_that_is_never_written_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller let go of the poll in the moment between the claim and the answer."""
    monkeypatch.setattr("holdfast.wire.capnp.stream._DROPPED_S", 0.01)
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        await queues.add(items=[b"x"])
        given_back: list[str] = []
        [connection] = server.door.connections
        connection.stream.hold(b"in no answer", lambda: given_back.append("dropped"))
        assert len((await queues.poll()).messages) == 1
        await _until(lambda: given_back)
        await asyncio.sleep(0.05)
        # What was written stays with its caller.
        assert (await queues.stats()).stats.inFlight == 1
        assert given_back == ["dropped"]


async def test_an_upload_ends_with_its_connection() -> None:
    async with serve_capnp(SystemClock(), max_payload="8MiB") as server:
        async with stock_client(server) as queues:
            sink = (await queues.upload(ref=ref(), options={"priority": 3})).sink
            await sink.write(part=b"a" * 100_000)
            await sink.write(part=b"b")
            added = await sink.finish()
            assert len(added.ids) == 1
            assert (await sink.write(part=b"more")).error.code == "invalid_argument"
            [message] = (await queues.poll(ref=ref())).messages
            assert (message.contents, message.priority) == (b"a" * 100_000 + b"b", 3)

            unfinished = (await queues.upload(ref=ref())).sink
            await unfinished.write(part=b"x")
            [connection] = server.door.connections
            assert len(connection.uploads) == 1
        await _until(lambda: not server.door.connections)
        assert not connection.uploads


@pytest.mark.spec("5.7")
async def test_a_draining_server_refuses_new_calls_and_says_that_nothing_was_done() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        server.drain.is_draining = True
        refused = (await queues.add(items=[b"x"])).error
        server.drain.is_draining = False

        assert refused.code == "store_unavailable"
        assert json.loads(refused.facts) == {"closing": True}
        assert refused.retryAfterMs > 0


async def test_calls_of_several_callers_share_a_connection() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        await asyncio.gather(*(_sent(queues.add(items=[b"%d" % n])) for n in range(200)))

        polled = await queues.poll(numItems=1_000)
        assert sorted(int(each.contents) for each in polled.messages) == list(range(200))
        assert len(server.door.connections) == 1


async def test_a_connection_lasts_however_many_calls_it_has_carried() -> None:
    async with serve_capnp(SystemClock()) as server, stock_client(server) as queues:
        for _ in range(MAX_UNFINISHED // 100 + 2):
            await asyncio.gather(*(_sent(queues.hello()) for _ in range(100)))

        [connection] = server.door.connections
        assert (await queues.hello()).version == 1
        assert len(connection.stream._frames._unfinished) < 10


async def _sent(promise: Any) -> Any:
    return await promise


async def _until(is_so: Any) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0)
