"""Enqueue, claim, verdicts, and message blocks (SPEC 3.1-3.4, 10.1, 10.2)."""

import io
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.client.message import AsyncMessage
from holdfast.model.errors import InvalidArgument, MessageNotFound, PayloadTooLarge, StaleLease
from holdfast.model.message import NewMessage
from holdfast.testing.laws.cases import note_case
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

JSON_VALUES: list[Any] = [
    {"a": [1, 2.5, None, True]},
    "text",
    "",
    7,
    None,
    False,
    {},
    "é\n\U0001f600",
    (1, 2),
    {"k": []},
]
BYTES: list[Any] = [b"", b"raw", bytes(range(256)), bytearray(b"array"), memoryview(b"view")]
SAME_DURATIONS: list[list[Any]] = [
    [30, 30.0, "30s", "30000ms", "0.5m", timedelta(seconds=30)],
    [0.07, "70ms", "0.07s", timedelta(milliseconds=70)],
    [2.007, "2007ms", "2.007s", timedelta(milliseconds=2_007)],
    [86_400, "24h", "1d", "1440m", timedelta(days=1)],
]


@dataclass
class Order:
    number: int


class HandlerBroke(Exception):
    pass


async def _ack_and_break(message: AsyncMessage) -> None:
    async with message:
        await message.ack()
        raise HandlerBroke


class OperationLaws:
    # --- Enqueue ---------------------------------------------------------------------------------------------

    async def test_a_payload_that_is_not_bytes_is_encoded_as_json(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            for value in JSON_VALUES:
                with note_case(value):
                    [_] = await q.enqueue(value)
                    [message] = await q.claim()
                    assert message.json() == (list(value) if isinstance(value, tuple) else value)
                    assert isinstance(message.payload, bytes)
                    assert message.content_type == "application/json"

    async def test_a_payload_of_bytes_is_stored_unchanged(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            for value in BYTES:
                with note_case(value):
                    [_] = await q.enqueue(value)
                    [message] = await q.claim()
                    assert message.payload == bytes(value)
                    assert message.content_type == "application/octet-stream"
                    file = io.BytesIO()
                    await message.write_to(file)
                    assert file.getvalue() == bytes(value)

    @proves("3.1")
    async def test_a_list_is_a_batch_and_returns_an_id_for_each_payload_in_order(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([{"n": 1}, b"raw", [3]])
            assert len(set(ids)) == 3
            claimed = await q.claim(limit=3)
            assert [each.id for each in claimed] == ids
            assert [each.payload for each in claimed] == [b'{"n":1}', b"raw", b"[3]"]
            assert await q.enqueue([]) == []

    @proves("3.2")
    async def test_options_of_a_call_apply_to_each_payload_unless_its_message_sets_them(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            batch = [b"a", NewMessage(b"b", priority=1), NewMessage(b"c", headers={"own": "c"})]
            ids = await q.enqueue(batch, priority=7, headers={"all": "x"}, content_type="text/plain")
            infos = [await q.get(id) for id in ids]
            assert [each.priority for each in infos] == [7, 1, 7]
            assert [each.headers for each in infos] == [{"all": "x"}, {"all": "x"}, {"own": "c"}]
            assert {each.content_type for each in infos} == {"text/plain"}

    @proves("3.2")
    async def test_every_option_of_an_enqueue_reaches_the_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, now_ms = hf.queue("q"), subject.clock.now_ms()
            headers = {"a": "1", "ü": "é", "empty": ""}
            [id] = await q.enqueue(
                b"x",
                priority=10,
                delay=5,
                ttl=60,
                key="k",
                group="g",
                headers=headers,
                max_retries=0,
                content_type="a/b",
            )
            info = await q.get(id)
            assert (info.priority, info.group, info.headers, info.content_type) == (10, "g", headers, "a/b")
            assert (info.enqueued_at, info.visible_at, info.expires_at) == (now_ms, now_ms + 5_000, now_ms + 60_000)
            subject.clock.advance(5_000)
            [message] = await q.claim()
            assert (message.priority, message.group, message.headers) == (10, "g", headers)
            assert (message.content_type, message.enqueued_at, message.attempt) == ("a/b", now_ms, 1)
            assert (await message.nack()).state == "failed"

    async def test_a_key_is_refused_for_several_payloads_but_accepted_for_a_list_of_one(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            with pytest.raises(InvalidArgument):
                await q.enqueue([b"a", b"b"], key="k")
            [first] = await q.enqueue([b"a"], key="k")
            assert not first.duplicate

    async def test_a_duration_is_the_same_in_each_spelling(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            for spellings in SAME_DURATIONS:
                with note_case(spellings):
                    ids = await q.enqueue([NewMessage(b"", delay=each) for each in spellings])
                    exact_ms = spellings[-1] // timedelta(milliseconds=1)
                    visible = [(await q.get(id)).visible_at - subject.clock.now_ms() for id in ids]
                    assert visible == [exact_ms] * len(spellings)

    @proves("3.2")
    async def test_deliver_at_is_an_instant_in_milliseconds_or_a_datetime(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, now_ms = hf.queue("q"), subject.clock.now_ms()
            instants = [now_ms + offset for offset in (1, 2, 4, 9, 29, 57, 333, 1_001, 86_400_000 * 3_650)]
            moments = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at) for at in instants]
            by_number = await q.enqueue([NewMessage(b"", deliver_at=at) for at in instants])
            by_moment = await q.enqueue([NewMessage(b"", deliver_at=at) for at in moments])
            assert [(await q.get(id)).visible_at for id in by_number] == instants
            assert [(await q.get(id)).visible_at for id in by_moment] == instants
            [late] = await q.enqueue(b"", deliver_at=now_ms - 60_000)
            assert [each.id for each in await q.claim(limit=10)] == [late]

    @proves("3.10")
    async def test_a_payload_has_at_most_one_mebibyte(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [_] = await q.enqueue(b"x" * (1 << 20))
            with pytest.raises(PayloadTooLarge):
                await q.enqueue(b"x" * ((1 << 20) + 1))
            [message] = await q.claim(limit=2)
            assert len(message.payload) == 1 << 20

    @proves("3.10")
    async def test_the_payload_limit_can_be_set(self, subject: Subject) -> None:
        async with subject.open(max_payload=10) as hf:
            q = hf.queue("q")
            await q.enqueue(b"x" * 10)
            with pytest.raises(PayloadTooLarge):
                await q.enqueue(b"x" * 11)

    # --- Claim -----------------------------------------------------------------------------------------------

    @proves("3.1")
    async def test_a_claim_returns_ready_messages_up_to_its_limit_which_is_one_by_default(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([b""] * 7)
            assert [each.id for each in await q.claim()] == ids[:1]
            assert [each.id for each in await q.claim(limit=4)] == ids[1:5]
            # Two messages are ready. A claim that finds some does not wait for more.
            assert [each.id for each in await q.claim(limit=10, wait=None)] == ids[5:]
            assert await q.claim() == []

    @proves("3.3")
    async def test_a_claim_sets_its_lease_and_its_owner(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, now_ms = hf.queue("q"), subject.clock.now_ms()
            await q.enqueue([b""] * 2)
            [default], [own] = await q.claim(), await q.claim(lease="1m", owner="worker-1")
            assert (default.lease_expires_at, own.lease_expires_at) == (now_ms + 5_000, now_ms + 60_000)
            assert (await q.get(own.id)).owner == "worker-1"
            assert (await q.get(own.id)).lease_expires_at == now_ms + 60_000

    async def test_a_subscription_yields_messages_as_they_arrive(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids, taken = await q.enqueue([b""] * 3), []
            async with aclosing(q.subscribe(lease=30)) as messages:  # type: ignore[type-var]  # an async generator
                async for message in messages:
                    taken.append(message.id)
                    await message.ack()
                    if len(taken) == 2:
                        ids += await q.enqueue(b"")
                    if len(taken) == 4:
                        break
            assert taken == ids

    async def test_changing_a_returned_message_does_not_change_its_stored_headers(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, headers = hf.queue("q"), {"a": "1"}
            [id] = await q.enqueue(b"x", headers=headers)
            headers["a"] = "changed by the sender"
            [message] = await q.claim()
            message.headers["a"] = "changed by the handler"
            (await q.get(id)).headers["b"] = "changed by a reader"
            await message.nack(delay=0)
            [again] = await q.claim()
            assert again.headers == {"a": "1"}

    # --- Verdicts --------------------------------------------------------------------------------------------

    @proves("3.1")
    async def test_a_batch_of_verdicts_returns_results_in_order_and_only_stale_ones_fail(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 4, correlation_id="c")
            a, b, c, d = await q.claim(limit=4)
            await b.ack()
            await q.remove(d.id)
            results = await q.ack([a, b, c.receipt, d.receipt, a])
            assert [each.id for each in results] == [a.id, b.id, c.id, d.id, a.id]
            assert [each.ok for each in results] == [True, False, True, False, False]
            assert [each.error for each in results] == [None, "stale_lease", None, "stale_lease", "stale_lease"]
            assert [each.state for each in results if each.ok] == ["succeeded", "succeeded"]
            assert [each.correlation_id for each in results if each.ok] == ["c", "c"]
            assert (await q.stats()).in_flight == 0

    @proves("3.1", "3.4")
    async def test_each_verdict_accepts_a_batch_and_returns_the_resulting_states(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, now_ms = hf.queue("q"), subject.clock.now_ms()
            await q.enqueue([b""] * 4)
            claimed = await q.claim(limit=4)
            extended = await q.extend(claimed, 30)
            assert [each.lease_expires_at for each in extended] == [now_ms + 30_000] * 4
            assert [each.lease_expires_at for each in claimed] == [now_ms + 30_000] * 4
            [retried] = await q.nack(claimed[:1], "why", delay=3)
            assert (retried.ok, retried.state, retried.retry_at) == (True, "ready", now_ms + 3_000)
            [failed] = await q.nack(claimed[1:2], "why", final=True)
            assert (failed.ok, failed.state) == (True, "failed")
            [released] = await q.release(claimed[2:3])
            assert (released.ok, released.state) == (True, "ready")
            for verdict in (q.ack, q.nack, q.extend, q.release):
                assert [each.ok for each in await verdict(claimed[:3])] == [False] * 3
                assert await verdict([]) == []
            [acked] = await q.ack([claimed[3].receipt])
            assert acked.ok

    async def test_a_verdict_on_a_message_whose_lease_is_lost_raises_stale_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [message] = await q.claim()
            await message.ack()
            for verdict in (message.ack, message.nack, message.extend, message.release):
                with pytest.raises(StaleLease):
                    await verdict()

    async def test_a_receipt_of_another_queue_is_stale(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, other, missing = hf.queue("q"), hf.queue("other"), hf.queue("missing")
            await q.enqueue(b"")
            await other.enqueue(b"")
            [message] = await q.claim()
            for stranger in (other, missing):
                [result] = await stranger.ack([message.receipt])
                assert (result.ok, result.error) == (False, "stale_lease")
            await message.ack()

    @proves("3.4")
    async def test_remove_deletes_a_message_in_any_state(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(keep_succeeded_ms=60_000)
            ids = await q.enqueue([b""] * 4)
            await q.enqueue(b"", delay=60)
            acked, failed, held = await q.claim(limit=3)
            await acked.ack()
            await failed.nack(final=True)
            for id in [each.id for each in await q.list()]:
                await q.remove(id)
                with pytest.raises(MessageNotFound):
                    await q.remove(id)
            with pytest.raises(StaleLease):
                await held.ack()
            assert await q.list() == []
            assert len(ids) == 4

    # --- Message blocks --------------------------------------------------------------------------------------

    @proves("10.1")
    async def test_a_message_block_acks_when_it_ends(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue({"number": 7})
            [message] = await q.claim()
            async with message as entered:
                assert entered is message
                assert message.json(Order) == Order(7)
            assert [event.event for event in await hf.journal()] == ["enqueued", "claimed", "succeeded"]

    @proves("10.1")
    async def test_a_message_block_nacks_with_its_error_and_raises_it(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"")
            [message] = await q.claim()
            with pytest.raises(HandlerBroke):
                async with message:
                    raise HandlerBroke("the press is jammed")
            info = await q.get(id)
            assert (info.state, info.failures) == ("ready", 1)
            assert "the press is jammed" in (info.last_error or "")

    @proves("10.2")
    async def test_a_message_block_does_not_settle_a_settled_message_again(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 3)
            acked, released, batched = await q.claim(limit=3)
            with pytest.raises(HandlerBroke):
                await _ack_and_break(acked)
            async with released:
                await released.release()
            async with batched:
                await q.nack([batched], "by hand", final=True)
            stats = await q.stats()
            assert (stats.ready, stats.in_flight, stats.failed) == (1, 0, 1)

    async def test_a_message_block_past_its_lease_raises_stale_lease_unless_it_has_its_own_error(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 2)
            late, broken = await q.claim(limit=2, lease=1)
            with pytest.raises(StaleLease):
                async with late:
                    subject.clock.advance(1_000)
            with pytest.raises(HandlerBroke):
                async with broken:
                    raise HandlerBroke

    @proves("10.2")
    async def test_a_message_closed_without_a_verdict_is_nacked_after_on_close_delay(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, now_ms = hf.queue("q"), subject.clock.now_ms()
            ids = await q.enqueue([b""] * 2)
            closed, settled = await q.claim(limit=2, on_close_delay=7)
            await closed.close()
            await closed.close()
            await settled.ack()
            await settled.close()
            info = await q.get(ids[0])
            assert (info.state, info.failures, info.visible_at) == ("ready", 1, now_ms + 7_000)
            with pytest.raises(MessageNotFound):
                await q.get(ids[1])
