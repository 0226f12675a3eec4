"""Names, ids, correlation ids and idempotency keys (SPEC 1, 3.5)."""

import string
import uuid
from typing import Any

import pytest

from holdfast.model.errors import (
    HoldfastError,
    InvalidArgument,
    InvalidName,
    MessageNotFound,
    OverQuota,
    QueueNotFound,
)
from holdfast.model.message import NewMessage
from holdfast.testing.laws.cases import note_case
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

EPOCH_MS = 1_704_067_200_000
DAY_MS = 86_400_000

_ALLOWED = string.ascii_letters + string.digits + "._-"
# Each forbidden ASCII character inside a name, and known attacks: paths, statements, look-alike characters.
HOSTILE_NAMES: list[Any] = [
    *(f"a{chr(code)}b" for code in range(128) if chr(code) not in _ALLOWED),
    *("", ".", "..", ".hidden", "../../etc/passwd", "a/../b", "/", "a\n", "\na", " a", "a ", "-\x00", "a" * 129),
    *("'; DROP TABLE items;--", "%2e%2e%2f", "${jndi:x}", "{0.__class__}", "<script>", "a\r\nX-Header: 1", "*", "?"),
    *("é", "名前", "\u0430", "a\u200bb", "\u202ea", "\u0661", "ﬁ", "İ", "a\ud800", "\U0001f600", "a" * 100_000),
    *(None, True, 7, 1.5, b"bytes", ["a"], ("a", "b"), {"a": 1}, object()),
]
GOOD_NAMES = ["a", "Z", "0", "_", "-", "a.", "a..b", "-.-", "A" * 128, "CON", "null", "default", "q.fifo", "1e5"]

NO_IDS: list[Any] = ["", "x", "-1", -1, 1 << 63, True, None, 1.5, b"x", "0" * 36, "²", "zz" * 18]

KEPT_CORRELATION_IDS = [("order-7", "order-7"), ("  trimmed \t", "trimmed"), ("!~" * 64, "!~" * 64)]
UNFIT_CORRELATION_IDS: list[Any] = ["", "   ", "a b", "a\nb", "é", "x" * 129, "a\x7f", "a\x00", 7, b"x", ["x"]]


class IdentityLaws:
    # --- Names -----------------------------------------------------------------------------------------------

    @proves("1.1")
    async def test_an_omitted_queue_or_tenant_is_named_default(self, subject: Subject) -> None:
        async with subject.open() as hf:
            [id] = await hf.queue().enqueue(b"x")
            assert (await hf.queue("default", tenant="default").get(id)).id == id
            await hf.queue("q").enqueue(b"x")
            assert [each.queue for each in await hf.queues()] == ["default", "q"]
            assert (await hf.tenant().stats()).ready == 2

    @proves("1.2")
    async def test_a_hostile_name_is_refused_wherever_a_name_is_accepted(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"x")
            for name in HOSTILE_NAMES:
                with pytest.raises(InvalidName) as refused:
                    hf.queue(name)
                # A refused name must not forge a log line or make one long.
                assert "\n" not in refused.value.message
                assert len(refused.value.message) < 400
                with pytest.raises(InvalidName):
                    hf.queue("q", tenant=name)
                with pytest.raises(InvalidName):
                    hf.tenant(name)
                with pytest.raises(InvalidName):
                    await hf.queues(tenant=name)
                with pytest.raises(InvalidName):
                    await q.move(name)
                if name is not None:  # None means the same tenant, or every tenant
                    with pytest.raises(InvalidName):
                        await hf.journal(tenant=name)
                    with pytest.raises(InvalidName):
                        await q.move("other", tenant=name)
            assert [each.tenant for each in await hf.tenants()] == ["default"]
            assert [each.queue for each in await hf.queues()] == ["q"]
            assert (await q.stats()).ready == 1

    @proves("1.2")
    async def test_an_allowed_name_names_a_queue_and_a_tenant(self, subject: Subject) -> None:
        async with subject.open() as hf:
            for name in GOOD_NAMES:
                with note_case(name):
                    await hf.queue(name, tenant=name).enqueue(b"x")
                    assert [each.queue for each in await hf.queues(tenant=name)] == [name]
                    assert name in [each.tenant for each in await hf.tenants()]
                    [message] = await hf.queue(name, tenant=name).claim()
                    assert (message.tenant, message.queue) == (name, name)

    @proves("1.2", "4.2")
    async def test_names_that_look_alike_when_joined_are_different_queues(self, subject: Subject) -> None:
        pairs = [
            ("a", "b.c"),
            ("a.b", "c"),
            ("a", "b-c"),
            ("a-b", "c"),
            ("A", "b.c"),
            ("a", "B.c"),
            ("a", "b"),
            ("b", "a"),
        ]
        async with subject.open() as hf:
            for tenant, queue in pairs:
                await hf.queue(queue, tenant=tenant).enqueue([tenant, queue])
            for tenant, queue in pairs:
                found = await hf.queue(queue, tenant=tenant).claim(limit=10)
                assert [each.json() for each in found] == [tenant, queue]

    @proves("1.3")
    async def test_the_first_enqueue_creates_a_queue_and_a_read_does_not(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q", tenant="acme")
            assert await q.claim() == []
            with pytest.raises(QueueNotFound):
                await q.stats()
            with pytest.raises(QueueNotFound):
                await q.peek()
            with pytest.raises(QueueNotFound):
                await q.list()
            with pytest.raises(QueueNotFound):
                await q.policy()
            with pytest.raises(QueueNotFound):
                await q.get(7)
            assert await hf.queues(tenant="acme") == []
            await q.enqueue(b"x")
            assert [each.queue for each in await hf.queues(tenant="acme")] == ["q"]

    @proves("1.3")
    async def test_without_auto_create_only_an_administrator_makes_queues(self, subject: Subject) -> None:
        async with subject.open(auto_create=False) as hf:
            q, other = hf.queue("q"), hf.queue("other")
            for refused in (q.enqueue(b"x"), q.claim(), q.claim(wait=None)):
                with pytest.raises(QueueNotFound):
                    await refused
            assert await hf.queues() == []
            await q.set_policy()
            await q.enqueue(b"x")
            with pytest.raises(QueueNotFound):
                await q.move("other")
            await other.set_policy()
            assert (await q.move("other")).changed == 1

    @proves("1.3")
    async def test_a_tenant_has_at_most_max_queues(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(quotas={"max_queues": 2})
            for name in ("a", "b"):
                await hf.queue(name, tenant="acme").enqueue(b"x")
            with pytest.raises(OverQuota):
                await hf.queue("c", tenant="acme").enqueue(b"x")
            with pytest.raises(OverQuota):
                await hf.queue("c", tenant="acme").set_policy(lease_ms=1)
            with pytest.raises(OverQuota):
                await hf.queue("a", tenant="acme").move("c")
            await hf.queue("a", tenant="acme").enqueue(b"x")
            await hf.queue("c", tenant="other").enqueue(b"x")
            assert [each.queue for each in await hf.queues(tenant="acme")] == ["a", "b"]

    # --- Ids -------------------------------------------------------------------------------------------------

    @proves("1.4")
    async def test_an_id_is_one_number_in_two_spellings(self, subject: Subject) -> None:
        async with subject.open() as hf:
            ids = await hf.queue("q").enqueue([b"x"] * 3)
            now_ms = subject.clock.now_ms()
            for id in ids:
                snowflake, text = id.snowflake, uuid.UUID(id)
                ms, node, sequence = snowflake >> 22, snowflake >> 12 & 0x3FF, snowflake & 0xFFF
                assert 0 < snowflake < 1 << 63
                assert ms + EPOCH_MS == now_ms
                assert text.version == 7
                assert text.variant == uuid.RFC_4122
                assert text.int >> 80 == now_ms
                assert text.int >> 64 & 0xFFF == sequence
                assert text.int >> 52 & 0x3FF == node
                assert isinstance(id, str)
                assert str(text) == id
            fixed = {uuid.UUID(id).int & (1 << 52) - 1 for id in ids}
            assert len(fixed) == 1

    @proves("1.4")
    async def test_ids_increase_strictly_even_when_the_clock_steps_back(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, other = hf.queue("q"), hf.queue("other", tenant="acme")
            # More ids than the sequence number of one millisecond can hold.
            ids = await q.enqueue([b""] * 5_000)
            ids += await other.enqueue(b"")
            subject.clock.step_to(subject.clock.now_ms() - 60_000)
            ids += await q.enqueue([b""] * 3)
            subject.clock.step_to(subject.clock.now_ms() + 3_600_000)
            ids += await other.enqueue([b""] * 3)
            snowflakes = [id.snowflake for id in ids]
            assert snowflakes == sorted(set(snowflakes))
            assert list(ids) == sorted(set(ids))

    @proves("1.4")
    async def test_a_message_is_found_by_each_spelling_of_its_id(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"x")
            for spelling in (id, str(id), id.snowflake, str(id.snowflake)):
                info = await q.get(spelling)
                assert (info.id, info.snowflake) == (str(id), id.snowflake)
                assert [each.id for each in await q.list(filter={"ids": [spelling]})] == [id]
            [message] = await q.claim()
            assert (message.id, message.id.snowflake) == (id, id.snowflake)
            for spell in (lambda id: id, str, lambda id: id.snowflake, lambda id: str(id.snowflake)):
                [id] = await q.enqueue(b"x")
                await q.remove(spell(id))
                with pytest.raises(MessageNotFound):
                    await q.get(id)

    async def test_an_invalid_id_is_refused(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"x")
            for junk in NO_IDS:
                for ask in (
                    q.get,
                    q.remove,
                    lambda id: q.list(filter={"ids": [id]}),
                    lambda id: q.cancel({"ids": [id]}),
                ):
                    with note_case(junk), pytest.raises(InvalidArgument):
                        await ask(junk)
            assert (await q.stats()).ready == 1

    async def test_an_id_is_found_only_in_its_own_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            [id] = await hf.queue("q").enqueue(b"x")
            for stranger in (hf.queue("other"), hf.queue("q", tenant="acme")):
                await stranger.enqueue(b"x")
                with pytest.raises(MessageNotFound):
                    await stranger.get(id)
                with pytest.raises(MessageNotFound):
                    await stranger.remove(id)
                with pytest.raises(HoldfastError) as unknown:
                    await stranger.get(str(uuid.uuid4()))
                assert unknown.value.code in ("message_not_found", "invalid_argument")

    # --- Correlation ids -------------------------------------------------------------------------------------

    @proves("1.5")
    async def test_the_caller_s_correlation_id_is_stored_without_surrounding_space(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            for given, kept in KEPT_CORRELATION_IDS:
                with note_case(given):
                    [id] = await q.enqueue(b"x", correlation_id=given)
                    assert id.correlation_id == kept
                    assert (await q.get(id)).correlation_id == kept
                    [message] = await q.claim()
                    assert (message.correlation_id, message.id.correlation_id) == (kept, kept)

    @proves("1.5")
    async def test_an_invalid_correlation_id_is_replaced_by_a_generated_one(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            seen: list[str] = []
            for given in UNFIT_CORRELATION_IDS:
                with note_case(given):
                    minted = [id.correlation_id for id in await q.enqueue([b"x", b"y"], correlation_id=given)]
                    minted += [id.correlation_id for id in await q.enqueue([b"x", b"y"])]
                    assert all(1 <= len(each) <= 128 and each.isascii() and each.isprintable() for each in minted)
                    assert [each.correlation_id for each in await q.claim(limit=4)] == minted
                    seen += minted
                    assert len(set(seen)) == len(seen)

    @proves("1.5")
    @pytest.mark.parametrize("given", ["order-7", None])
    async def test_the_correlation_id_stays_the_same_from_enqueue_to_ack(self, subject: Subject, given: Any) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"x", correlation_id=given, max_retries=1)
            seen = []
            for verdict in ("retry", "dead letter"):
                [message] = await q.claim()
                [extended] = await q.extend([message], 5)
                [nacked] = await q.nack([message], verdict, delay=0)
                seen += [message.correlation_id, extended.correlation_id, nacked.correlation_id]
            [failed] = await q.list(state="failed")
            await q.redrive()
            [message] = await q.claim()
            [released] = await q.release([message])
            await q.move("elsewhere", tenant="acme")
            elsewhere = hf.queue("elsewhere", tenant="acme")
            [message] = await elsewhere.claim()
            [acked] = await elsewhere.ack([message])
            seen += [failed.correlation_id, released.correlation_id, message.correlation_id, acked.correlation_id]
            seen += [event.correlation_id for event in await hf.journal()]
            assert set(seen) == {id.correlation_id}

    @proves("1.5")
    async def test_a_trace_context_is_delivered_with_the_message(self, subject: Subject) -> None:
        traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        async with subject.open() as hf:
            await hf.queue("q").enqueue(b"x", headers={"traceparent": traceparent})
            [message] = await hf.queue("q").claim()
            assert message.headers["traceparent"] == traceparent

    # --- Idempotency keys ------------------------------------------------------------------------------------

    @proves("2.3", "3.5")
    async def test_a_repeated_key_returns_the_id_of_the_first_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [first] = await q.enqueue({"n": 1}, key="k", correlation_id="c-1")
            [again] = await q.enqueue({"n": 2}, key="k", correlation_id="c-2", priority=0)
            assert (first.duplicate, again.duplicate) == (False, True)
            assert (again, again.snowflake, again.correlation_id) == (first, first.snowflake, "c-1")
            [message] = await q.claim(limit=10)
            assert message.json() == {"n": 1}
            assert [event.event for event in await hf.journal()] == ["enqueued", "claimed"]

    @proves("3.5")
    async def test_a_key_given_twice_in_one_call_creates_one_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([NewMessage(n, key=key) for n, key in enumerate(["a", "b", "a", None, "a", None])])
            assert [id.duplicate for id in ids] == [False, False, True, False, True, False]
            assert ids[0] == ids[2] == ids[4]
            assert [each.json() for each in await q.claim(limit=10)] == [0, 1, 3, 5]

    @proves("3.5")
    async def test_a_key_outlives_its_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([NewMessage(b"", key=key) for key in ("acked", "failed", "removed", "purged")])
            acked, failed, removed = await q.claim(limit=3)
            await acked.ack()
            await failed.nack(final=True)
            await q.remove(removed.id)
            await q.purge()
            await subject.sweep(hf)
            again = await q.enqueue([NewMessage(b"", key=key) for key in ("acked", "failed", "removed", "purged")])
            assert again == ids
            assert all(id.duplicate for id in again)
            assert await q.claim() == []

    @proves("3.5")
    async def test_a_key_can_be_reused_after_its_window_even_before_a_sweep(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, brief = hf.queue("q"), hf.queue("brief")
            await brief.set_policy(dedup_window_ms=1_000)
            [first], [short] = await q.enqueue(b"", key="k"), await brief.enqueue(b"", key="k")
            subject.clock.advance(999)
            await subject.sweep(hf)
            assert await brief.enqueue(b"", key="k") == [short]
            subject.clock.advance(2)
            [next] = await brief.enqueue(b"", key="k")
            assert (next.duplicate, next == short) == (False, False)
            assert (await brief.enqueue(b"", key="k"))[0].duplicate
            # The default window is one day, counted from the first enqueue. Duplicates do not extend it.
            subject.clock.advance(DAY_MS - 1_002)
            assert await q.enqueue(b"", key="k") == [first]
            subject.clock.advance(2)
            await subject.sweep(hf)
            assert not (await q.enqueue(b"", key="k"))[0].duplicate

    @proves("3.5", "4.5")
    async def test_any_number_of_keys_past_their_window_is_swept(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            batch = [NewMessage(b"", key=f"k-{n}") for n in range(2_500)]
            ids = await q.enqueue(batch)
            assert await q.enqueue(batch) == ids
            subject.clock.advance(DAY_MS + 1)
            await subject.sweep(hf)
            again = await q.enqueue(batch)
            assert not any(id.duplicate for id in again)
            assert not set(ids) & set(again)
            assert (await q.stats()).ready == 5_000

    @proves("3.5")
    async def test_a_key_belongs_to_one_queue_of_one_tenant(self, subject: Subject) -> None:
        async with subject.open() as hf:
            queues = [hf.queue("q"), hf.queue("other"), hf.queue("q", tenant="acme")]
            ids = [id for q in queues for id in await q.enqueue(b"", key="k")]
            assert not any(id.duplicate for id in ids)
            assert len(set(ids)) == 3
            assert [id.duplicate for q in queues for id in await q.enqueue(b"", key="k")] == [True] * 3
