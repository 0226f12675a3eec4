"""Invalid calls have a named error and change nothing; quotas are never exceeded (SPEC 3.2, 3.11, 8.9)."""

import math
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.model import errors
from holdfast.model.errors import InvalidArgument, OverQuota, PayloadTooLarge, StaleLease, Throttled
from holdfast.model.message import NewMessage
from holdfast.testing.laws.cases import note_case
from holdfast.testing.laws.operating.inspection import list_all
from holdfast.testing.laws.operating.journal import events_of
from holdfast.testing.laws.operating.operators import add_failed
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

CODES = {
    *("invalid_name", "invalid_argument", "unauthenticated", "forbidden", "queue_not_found", "message_not_found"),
    *("stale_lease", "conflict", "already_exists", "draining", "payload_too_large", "over_quota", "rate_limited"),
    *("store_unavailable", "internal"),
}

_NOT_DURATIONS: list[Any] = [
    -1,
    -0.001,
    math.nan,
    math.inf,
    True,
    "soon",
    "5",
    "-1s",
    "",
    timedelta(-1),
    [],
    b"1s",
    10**30,
]
_NOT_NUMBERS: list[Any] = [-1, True, "1", 1.5, math.nan, [], b"1"]
_NOT_TEXTS: list[Any] = ["", 7, True, b"k", "a\nb", "\x00", "\ud800", ["k"]]


def _endless() -> dict[str, Any]:
    document: dict[str, Any] = {}
    document["itself"] = document
    return document


_BAD_VALUES: dict[str, list[Any]] = {
    "priority": [*_NOT_NUMBERS, 256],
    "delay": _NOT_DURATIONS,
    "ttl": [*_NOT_DURATIONS, 0],
    "deliver_at": [-1, True, 1.5, "2030-01-01", datetime(2030, 1, 1), 1 << 70],
    "key": _NOT_TEXTS,
    "group": _NOT_TEXTS,
    "content_type": ["", 7, "a\nb"],
    "max_retries": _NOT_NUMBERS,
    "headers": [{"a": 1}, {1: "a"}, {"": "a"}, {"a": None}, {"a": "\ud800"}, "a", [("a", "b")], 7],
}
BAD_OPTIONS: dict[str, list[dict[str, Any]]] = {
    **{name: [{name: value} for value in values] for name, values in _BAD_VALUES.items()},
    "two times": [{"delay": 1, "deliver_at": 1_900_000_000_000}],
}
BAD_PAYLOADS: list[Any] = [
    object(),
    {"a": object()},
    {1, object()},
    "\ud800",
    {"n": math.nan},
    math.inf,
    _endless(),
    len,
]

# The valid arguments of each call, beside the invalid one.
_REST: dict[str, dict[str, Any]] = {
    "q.enqueue": {"payload": [b"x"] * 10},
    "q.move": {"to": "other"},
    "q.ledger_ack": {"consumer": "c", "upto": 1},
    "q.ledger_extend": {"consumer": "c"},
    "m.progress": {"percent": 1},
}
_BAD_FILTERS: list[Any] = [
    *({"colour": 1}, "x", 7, {"ids": "x"}, {"ids": 7}, {"ids": ["junk"]}, {"priority": "high"}, {"headers": "x"}),
    *({"headers": {"a": 1}}, {"error_contains": 7}, {"older_than_ms": -1}, {"older_than_ms": "1s"}, {7: 7}),
    *({"owner": 7}, {"owner": ""}, {"held_for_ms": -1}, {"held_for_ms": "1s"}, {"delayed": "soon"}, {"delayed": 1}),
]
# The call, the name of its argument, and invalid values. Without a name, each value is a set of named arguments.
_BAD_ARGUMENTS: list[tuple[str, str | None, list[Any]]] = [
    ("q.enqueue", "colour", ["red"]),
    ("q.claim", "colour", ["red"]),
    ("q.claim", "limit", [*_NOT_NUMBERS, 0, None]),
    ("q.claim", "wait", _NOT_DURATIONS),
    ("q.claim", "lease", [*_NOT_DURATIONS, 0]),
    ("q.claim", "on_close_delay", _NOT_DURATIONS),
    ("q.claim", "owner", _NOT_TEXTS),
    ("q.claim", "ledger", ["c", ("c",), ("", 1), (1, 1), ("c", -1), ("c", True), ("c", "1"), ("c", 1, 2), 7]),
    ("m.nack", "delay", _NOT_DURATIONS),
    ("m.nack", "error", [7]),
    ("m.nack", None, [{"defer": True, "final": True}]),
    ("m.extend", "lease", [*_NOT_DURATIONS, 0]),
    ("m.progress", "percent", [-1, 101, math.nan, True, "1", None]),
    ("m.progress", "text", [7, None]),
    ("m.save_state", "document", [...]),
    ("q.ack", "messages", [["junk"], [""], [7], [None], [b"x"], ["A" * 54], "junk"]),
    ("q.peek", "limit", [*_NOT_NUMBERS, 0]),
    ("q.list", "limit", [*_NOT_NUMBERS, 0]),
    ("q.list", "state", ["pending", "", "READY", 1, []]),
    ("q.list", "cursor", ["junk", "", "-1", b"1", 1.5]),
    ("q.list", "filter", _BAD_FILTERS),
    ("q.cancel", "filter", _BAD_FILTERS),
    ("q.redrive", "filter", _BAD_FILTERS),
    ("q.redrive", "rate_per_s", [0, -1, math.nan, "fast", []]),
    (
        "q.redrive",
        "edit",
        [{}, {"id": 7}, {"payload": 7}, {"id": "x", "payload": 7}, {"id": 7, "payload": ...}, 7, "x"],
    ),
    ("q.reprioritise", "priority", [*_NOT_NUMBERS, 256, None]),
    ("q.purge", "state", ["in_flight", "succeeded", "junk", None]),
    ("q.move", "state", ["in_flight", "succeeded", "junk", None]),
    ("q.move", "to", ["q"]),
    ("q.delete", "force_after", _NOT_DURATIONS),
    ("q.ledger", "consumer", _NOT_TEXTS),
    ("q.ledger_ack", "upto", [*_NOT_NUMBERS, None]),
    ("q.ledger_extend", "lease", [*_NOT_DURATIONS, 0]),
    ("hf.journal", "limit", [*_NOT_NUMBERS, 0]),
    ("hf.journal", "after", ["junk", "-1", "²", 7, b"1"]),
    ("q.set_policy", "colour", [1]),
    ("q.set_policy", "lease_ms", [0, -1, "5s", True, None, 1.5, 10**30]),
    ("q.set_policy", "max_retries", [-1]),
    ("q.set_policy", "ttl_ms", [0]),
    ("q.set_policy", "on_ttl", ["explode"]),
    ("q.set_policy", "keep_succeeded_ms", [-1, math.nan]),
    ("q.set_policy", "limits", [7, {"colour": 1}, {"write_ops_per_s": -1}]),
    ("q.set_policy", None, [{"max_retries": 9, "colour": 1}, {"max_retries": 9, "dedup_window_ms": -1}]),
    ("tenant.set", "colour", [1]),
    ("tenant.set", "weight", [0, -1, "heavy", True]),
    ("tenant.set", "quotas", [7, {"colour": 1}, {"max_messages": -1}, {"max_bytes": "1MiB"}, {"default_ttl_ms": 0}]),
    ("tenant.set", "limits", [{"burst_s": math.nan}]),
    ("tenant.set", "journal_retention_ms", [0, -1]),
    ("tenant.set", None, [{"weight": 5, "colour": 1}]),
]
BAD_CALLS: dict[str, list[dict[str, Any]]] = {
    call: [
        value if name is None else {name: value}
        for other, name, values in _BAD_ARGUMENTS
        if other == call
        for value in values
    ]
    for call, _, _ in _BAD_ARGUMENTS
}


async def visible_state(hf: AsyncHoldfast) -> list[Any]:
    """Return everything visible in a store, to check that a call changed nothing."""
    seen: list[Any] = [await events_of(hf)]
    for tenant in await hf.tenants():
        seen.append(tenant)
        for summary in await hf.queues(tenant=tenant.tenant):
            q = hf.queue(summary.queue, tenant=tenant.tenant)
            seen += [summary, await q.policy(), await list_all(q), await q.ledger("c")]
    return seen


class RefusalLaws:
    @proves("3.11")
    async def test_every_error_a_caller_can_meet_has_a_code_and_a_class(self) -> None:
        by_code = {
            each.code: each
            for each in vars(errors).values()
            if isinstance(each, type) and issubclass(each, errors.HoldfastError) and "code" in vars(each)
        }
        moves = (errors.Refused, errors.Throttled, errors.Unavailable)
        assert {code for code, each in by_code.items() if issubclass(each, moves)} | {"internal"} == CODES

    @proves("3.2")
    @pytest.mark.parametrize("option", BAD_OPTIONS)
    async def test_one_invalid_message_in_ten_enqueues_none(self, subject: Subject, option: str) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"before")
            before = await visible_state(hf)
            batch = [NewMessage(b"x", key=f"k-{n}") for n in range(9)]
            for options in BAD_OPTIONS[option]:
                with note_case(options):
                    with pytest.raises(InvalidArgument):
                        await q.enqueue([*batch[:5], NewMessage(b"x", **options), *batch[5:]])
                    with pytest.raises(InvalidArgument):
                        await hf.queue("new").enqueue(b"x", **options)
                    assert await visible_state(hf) == before
            # The keys of the valid messages are still unused.
            assert not any(id.duplicate for id in await q.enqueue(batch))

    @proves("3.2")
    async def test_a_payload_that_cannot_be_encoded_enqueues_none(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"before")
            before = await visible_state(hf)
            for payload in BAD_PAYLOADS:
                with note_case(payload):
                    with pytest.raises(InvalidArgument):
                        await q.enqueue([b"x"] * 5 + [payload] + [b"x"] * 4)
                    with pytest.raises(InvalidArgument):
                        await q.enqueue(payload)
                    assert await visible_state(hf) == before

    @proves("3.2")
    async def test_a_payload_that_is_too_large_enqueues_none(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"before")
            before = await visible_state(hf)
            with pytest.raises(PayloadTooLarge):
                await q.enqueue([b"x"] * 9 + [b"x" * ((1 << 20) + 1)])
            assert await visible_state(hf) == before

    @pytest.mark.parametrize("call", BAD_CALLS)
    async def test_an_invalid_call_is_refused_and_changes_nothing(self, subject: Subject, call: str) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await add_failed(q, 2)
            await q.enqueue([b"x"] * 3)
            [message] = await q.claim(state=True, lease=60)
            before = await visible_state(hf)
            on, verb = call.split(".")
            target = {"hf": hf, "q": q, "m": message, "tenant": hf.tenant("acme")}[on]
            for wrong in BAD_CALLS[call]:
                with note_case(wrong):
                    with pytest.raises(InvalidArgument):
                        await getattr(target, verb)(**{**_REST.get(call, {}), **wrong})
                    assert await visible_state(hf) == before
            await message.ack()

    async def test_one_invalid_receipt_settles_none_of_its_batch(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 2)
            first, second = await q.claim(limit=2)
            for verdict in (q.ack, q.nack, q.extend, q.release):
                with pytest.raises(InvalidArgument):
                    await verdict([first, "junk", second])
            assert [each.ok for each in await q.ack([first, second])] == [True, True]

    async def test_an_invalid_call_does_not_create_a_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            unknown: Any = {"colour": 1}
            for refused in (q.set_policy(**unknown), q.claim(limit=0), q.enqueue(b"", priority=-1)):
                with pytest.raises(InvalidArgument):
                    await refused
            assert await hf.queues() == []
            assert await hf.tenants() == []

    @proves("2.6")
    async def test_a_forged_receipt_is_stale_and_changes_nothing(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 2)
            first, second = await q.claim(limit=2, lease=60)
            before = await visible_state(hf)
            # One has the id of one message and the token of the other. In the other, a character of the token differs.
            wrong = "A" if first.receipt[30] != "A" else "B"
            for forged in (first.receipt[:20] + second.receipt[20:], first.receipt[:30] + wrong + first.receipt[31:]):
                for verdict in (q.ack, q.nack, q.extend, q.release):
                    [result] = await verdict([forged])
                    assert (result.ok, result.error) == (False, StaleLease.code)
            assert await visible_state(hf) == before

    # --- Quotas ----------------------------------------------------------------------------------------------

    @proves("8.9")
    async def test_max_messages_counts_every_stored_message_of_the_tenant(self, subject: Subject) -> None:
        async with subject.open() as hf:
            a, b = hf.queue("a", tenant="acme"), hf.queue("b", tenant="acme")
            await hf.tenant("acme").set(quotas={"max_messages": 5})
            await add_failed(a, 1)
            await a.enqueue(b"")
            [held] = await a.claim()
            await b.enqueue([b"", b""], delay=60)
            before = await visible_state(hf)
            with pytest.raises(OverQuota) as refused:
                await b.enqueue([b""] * 2)
            assert isinstance(refused.value, Throttled)
            assert refused.value.retry_after_ms > 0
            assert await visible_state(hf) == before
            await b.enqueue(b"")
            await hf.queue("a", tenant="other").enqueue([b""] * 10)
            with pytest.raises(OverQuota):
                await a.enqueue(b"")
            # Releasing a message frees no quota; deleting one does.
            await held.release()
            with pytest.raises(OverQuota):
                await a.enqueue(b"")
            await a.purge("failed")
            await a.enqueue(b"")

    async def test_a_duplicate_uses_no_quota(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q", tenant="acme")
            await hf.tenant("acme").set(quotas={"max_messages": 2, "max_bytes": 2})
            assert len(await q.enqueue([NewMessage(b"x", key="a"), NewMessage(b"x", key="a"), NewMessage(b"x")])) == 3
            assert (await q.enqueue(b"x", key="a"))[0].duplicate
            assert (await q.stats()).ready == 2

    @proves("8.9")
    async def test_max_bytes_counts_payloads_and_headers(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q", tenant="acme")
            await hf.tenant("acme").set(quotas={"max_bytes": 20})
            await q.enqueue(b"12345", headers={"abc": "de"})
            with pytest.raises(OverQuota):
                await q.enqueue([b"12345", b"123456"])
            await q.enqueue([b"12345", b"12345"])
            with pytest.raises(OverQuota):
                await q.enqueue(b"1")
            assert (await q.stats()).bytes == 20
            for message in await q.claim(limit=1):
                await message.ack()
            await q.enqueue(b"1234567890")

    @proves("8.9")
    async def test_a_quota_is_not_exceeded_by_a_move_or_an_edit(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, small = hf.queue("q"), hf.queue("q", tenant="small")
            await hf.tenant("small").set(quotas={"max_messages": 2, "max_bytes": 10})
            await q.enqueue([b"123"] * 3)
            [id] = await add_failed(small, 1)
            before = await visible_state(hf)
            with pytest.raises(OverQuota):
                await q.move("q", tenant="small")
            with pytest.raises(OverQuota):
                await small.redrive(edit={"id": id, "payload": b"x" * 11})
            assert await visible_state(hf) == before

    async def test_editing_an_empty_message_does_not_use_the_message_quota_again(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q", tenant="acme")
            await hf.tenant("acme").set(quotas={"max_messages": 1})
            [id] = await q.enqueue([b""])
            [message] = await q.claim()
            await message.nack("no", final=True)
            await q.redrive(edit={"id": id, "payload": b"x"})
            [message] = await q.claim()
            assert message.payload == b"x"

    @proves("3.10", "8.9")
    async def test_max_message_bytes_is_the_tenant_s_own_limit(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q", tenant="acme")
            await hf.tenant("acme").set(quotas={"max_message_bytes": 10})
            await q.enqueue(b"1234567890")
            with pytest.raises(PayloadTooLarge):
                await q.enqueue([b"1", b"12345678901"])
            await hf.queue("q").enqueue(b"12345678901")
            assert (await q.stats()).ready == 1

    async def test_a_refused_enqueue_does_not_create_its_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(quotas={"max_messages": 1, "max_message_bytes": 10})
            with pytest.raises(OverQuota):
                await hf.queue("q", tenant="acme").enqueue([b""] * 2)
            with pytest.raises(PayloadTooLarge):
                await hf.queue("q", tenant="acme").enqueue(b"12345678901")
            assert await hf.queues(tenant="acme") == []

    @proves("8.9")
    async def test_default_ttl_applies_to_messages_without_a_ttl(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q", tenant="acme"), subject.clock.now_ms()
            await hf.tenant("acme").set(quotas={"default_ttl_ms": 5_000})
            [plain], [own] = await q.enqueue(b""), await q.enqueue(b"", ttl=60)
            assert (await q.get(plain)).expires_at == start + 5_000
            assert (await q.get(own)).expires_at == start + 60_000
            subject.clock.advance(5_000)
            await subject.sweep(hf)
            assert [(each.id, each.reason) for each in await q.list(state="failed")] == [(plain, "ttl")]

    async def test_setting_a_tenant_changes_only_the_given_fields(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(weight=3, quotas={"max_messages": 7})
            config = await hf.tenant("acme").set(quotas={"max_bytes": 9})
            assert (config.weight, config.quotas.max_messages, config.quotas.max_bytes) == (3, 7, 9)
            assert await hf.tenant("acme").get() == config
            assert (await hf.tenant("other").get()).quotas.max_messages is None
            assert (await hf.tenant("acme").set(quotas={"max_messages": None})).quotas.max_messages is None
