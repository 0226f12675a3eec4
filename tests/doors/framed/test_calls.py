"""Calls over frames: answers in any order, one for each call, and the operations of the table."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.model.requests import Settle
from holdfast.testing import ManualClock
from holdfast.wire.framed import answers
from holdfast.wire.framed.frames import CONNECTION, FrameKind
from tests.doors.framed.frames_by_hand import ask, connected, greeted
from tests.doors.framed.serving import serve_framed


@pytest.mark.spec("8.15")
async def test_a_message_is_enqueued_claimed_and_acked(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        [enqueued] = await peer.enqueue(b"hi")
        [delivery] = await peer.claim()
        assert (delivery.snowflake, delivery.payload, delivery.attempt) == (enqueued.snowflake, b"hi", 1)
        [result] = await peer.settle(["ack", delivery.receipt])
        assert (result.ok, result.state) == (True, "succeeded")
        [again] = await peer.settle(["ack", delivery.receipt])
        assert (again.ok, again.error) == (False, "stale_lease")
        assert await peer.claim() == []


async def test_the_hello_of_the_server_says_its_limits(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, connected(server.port) as peer:
        hello = await peer.hello()
        assert (hello.version, hello.max_calls, hello.window_bytes) == (1, 4_096, 256 << 10)
        assert hello.max_frame_bytes == 16 << 20


async def test_calls_need_not_wait_for_the_hello(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, connected(server.port) as peer:
        peer.greet()
        await peer.enqueue(b"hi")
        assert (await peer.next_of(CONNECTION))[0] == FrameKind.HELLO


@pytest.mark.spec("8.15")
async def test_answers_come_as_they_are_ready_and_not_in_order(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        waiting = peer.open_claim(None)
        others = [peer.open("enqueue", "acme", "other", None, [[b"%d" % at]]) for at in range(100)]
        ids = [answers.read_enqueued(await peer.result(call))[0].snowflake for call in reversed(others)]
        assert len(set(ids)) == 100
        await peer.enqueue(b"late")
        [delivery] = await peer.claimed(waiting)
        assert delivery.payload == b"late"


@pytest.mark.spec("8.15")
async def test_many_calls_of_one_write_are_all_answered(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        calls = [peer.open("enqueue", "acme", "jobs", None, [[b"x" * 1_000]]) for _ in range(1_000)]
        for call in calls:
            await peer.result(call)
        assert (await peer.stats())["ready"] == 1_000


async def test_the_number_of_an_answered_call_may_be_used_again(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        for _ in range(3):
            await peer.result(peer.open("enqueue", "acme", "jobs", None, [[b"x"]], number=7))


async def test_an_exchange_settles_and_claims(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1", b"2")
        [first] = await peer.claim()
        body = await peer.call("exchange", "acme", "jobs", None, [1], [["ack", first.receipt]])
        [result], [second] = answers.read_claimed(body)
        assert (result.ok, second.payload) == (True, b"2")


async def test_an_exchange_that_waits_answers_its_results_with_the_first_message(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1")
        [first] = await peer.claim()
        call = peer.open("exchange", "acme", "jobs", None, [1], [["ack", first.receipt]], None)
        await peer.enqueue(b"2")
        [result], [second] = answers.read_claimed(await peer.result(call))
        assert (result.ok, second.payload) == (True, b"2")


async def test_a_cancelled_exchange_answers_its_results(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1")
        [first] = await peer.claim()
        call = peer.open("exchange", "acme", "jobs", None, [1], [["ack", first.receipt]], None)
        peer.write(FrameKind.CANCEL, call)
        [result], deliveries = answers.read_claimed(await peer.result(call))
        assert (result.ok, deliveries) == (True, [])


@pytest.mark.spec("3.4")
@pytest.mark.parametrize("verdict", Settle)
async def test_every_verdict_is_carried_out(clock: ManualClock, verdict: Settle) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1")
        [delivery] = await peer.claim()
        [result] = await peer.settle([verdict.value, delivery.receipt])
        assert result.ok


async def test_a_ledgers_claim_is_read_again_by_its_number(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1", b"2")
        form = ask(limit=1, ledger=("me", 1))
        first = answers.read_claimed(await peer.call("claim", "acme", "jobs", None, form)).deliveries
        again = answers.read_claimed(await peer.call("claim", "acme", "jobs", None, form)).deliveries
        assert first[0].receipt == again[0].receipt


@pytest.mark.spec("1.5")
async def test_correlation_ids_come_from_the_message_or_from_the_call(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        own = [b"1", "t", {}, 100, 0, None, None, None, None, " own "]
        none = [b"3", "t", {}, 100, 0, None, None, None, None, "not\none"]
        body = await peer.call("enqueue", "acme", "jobs", {"correlation_id": "the-calls"}, [own, [b"2"], none])
        told = answers.read_enqueued(body)
        assert [each.correlation_id for each in told] == ["own", "the-calls", "the-calls"]


async def test_operations_go_by_name(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"\xff\x00")
        assert (await peer.stats())["ready"] == 1

        async def call(name: str, arguments: dict[str, Any] | None = None) -> Any:
            places = () if arguments is None else (arguments,)
            return msgspec.msgpack.decode(await peer.call(name, "acme", "jobs", None, *places))

        page = await call("browse", {"payload": True})
        assert [each["payload"] for each in page["messages"]] == [b"\xff\x00"]
        assert await call("pause") is None
        assert (await call("queue"))[0]["paused"] is True
        assert (await call("set_policy", {"changes": {"max_retries": 9}}))["max_retries"] == 9
        assert [each["tenant"] for each in await call("tenants")] == ["acme"]
        assert (await call("purge"))["changed"] == 1
        assert len((await call("journal"))["events"]) >= 2
        schedule = {"name": "s", "every_ms": 60_000, "message": {"payload": b"\xff"}}
        assert (await call("set_schedule", schedule))["name"] == "s"


async def test_state_documents_are_saved_and_delivered(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1")
        [delivery] = await peer.claim()
        arguments = {"receipt": str(delivery.receipt), "document": b'{"step":1}', "progress": {"percent": 50}}
        saved = msgspec.msgpack.decode(await peer.call("save_state", "acme", "jobs", None, arguments))
        await peer.settle(["release", delivery.receipt])
        body = await peer.call("claim", "acme", "jobs", None, ask(with_state=True))
        [again] = answers.read_claimed(body).deliveries
        assert again.state is not None
        assert (again.state.document, again.state.etag) == (b'{"step":1}', saved["etag"])
        assert again.state.progress is not None
        assert again.state.progress.percent == 50


async def test_a_part_of_a_payload_is_read_while_the_receipt_holds(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"0123456789")
        [delivery] = await peer.claim()
        part = answers.read_part(await peer.call("read_part", "acme", "jobs", None, delivery.receipt, 3, 4))
        assert (part.data, part.total) == (b"3456", 10)
        await peer.settle(["ack", delivery.receipt])
        error = await peer.refusal("read_part", "acme", "jobs", None, delivery.receipt, 3, 4)
        assert error.code == "stale_lease"


async def test_calls_are_measured_by_operation_queue_and_outcome(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        await peer.enqueue(b"1")
        await peer.claim()
        call = peer.open_claim(None)
        peer.write(FrameKind.CANCEL, call)
        await peer.claimed(call)
        await peer.refusal("enqueue", "acme", "jobs", None, [["text"]])
        await peer.refusal("get", "acme", "jobs", None, {"id": "x"})
        told = [(operation, outcome) for operation, _, outcome in server.requests.seen]
        assert told == [
            ("enqueue", "ok"),
            ("claim", "ok"),
            ("claim_wait", "ok"),
            ("unknown", "invalid_argument"),
            ("get", "invalid_argument"),
        ]
        assert str(server.requests.seen[0][1]) == "acme/jobs"


async def test_a_claim_that_waits_is_answered_when_its_time_is_over(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        call = peer.open_claim(5_000)
        await peer.enqueue(b"x", queue="other")  # behind it: it waits by now
        clock.advance(5_000)
        assert await peer.claimed(call) == []


async def test_two_connections_share_nothing_but_the_queues(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as one, greeted(server.port) as other:
        calls = one.open_claim(None), other.open_claim(None)
        assert calls == (1, 1)
        await asyncio.gather(one.enqueue(b"1"), other.enqueue(b"2"))
        payloads = {(await one.claimed(1))[0].payload, (await other.claimed(1))[0].payload}
        assert payloads == {b"1", b"2"}
