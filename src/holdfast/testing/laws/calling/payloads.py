"""Payloads, state documents and options of common Python types (SPEC 3.2, 10.1)."""

import enum
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pytest

from holdfast.model.errors import InvalidArgument
from holdfast.model.requests import Filter
from holdfast.testing.laws.cases import note_case
from holdfast.testing.subject import Subject


class _Text(str):
    __slots__ = ()


class _Whole(int):
    pass


class _Real(float):
    pass


class _Colour(enum.Enum):
    RED = "red"


class _Queue(enum.StrEnum):
    MAIL = "mail"


class _Level(enum.IntEnum):
    HIGH = 3


@dataclass
class _Line:
    name: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


class _Order(msgspec.Struct):
    line: _Line
    at: datetime


_DAY = date(2030, 1, 31)
_NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)

_ENCODED: list[tuple[Any, Any]] = [
    (_Text("a"), "a"),
    ([_Whole(1), _Real(1.5)], [1, 1.5]),
    ({_Text("key"): _Text("value")}, {"key": "value"}),
    (_NOON, "2030-01-31T12:00:00Z"),
    ([_DAY, time(12, 30), timedelta(minutes=5)], ["2030-01-31", "12:30:00", "PT300S"]),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Decimal("1.10"), "1.10"),
    ([_Colour.RED, _Queue.MAIL, _Level.HIGH], ["red", "mail", 3]),
    ([{1}, frozenset({2}), (3,), deque([4])], [[1], [2], [3], [4]]),
    ([OrderedDict(a=1), MappingProxyType({"b": 2})], [{"a": 1}, {"b": 2}]),
    (
        _Order(_Line("nail", Decimal("0.05"), {"steel"}), _NOON),
        {"line": {"name": "nail", "price": "0.05", "tags": ["steel"]}, "at": "2030-01-31T12:00:00Z"},
    ),
    # A payload of bytes is stored unchanged. Bytes inside JSON are base64, which a typed handler decodes.
    ({"raw": b"\x00\xff"}, {"raw": "AP8="}),
]

_REFUSED: list[tuple[Any, str, str]] = [
    (object(), "object", "$"),
    ({"order": {"lines": [1, {"by": object()}]}}, "object", "$.order.lines[1].by"),
    (_Line("nail", lambda: 0), "function", "$.price"),  # type: ignore[arg-type]  # wrong on purpose
    ([1, 1j], "complex", "$[1]"),
    (Exception("no"), "Exception", "$"),
    ({"share": float("nan")}, "nan", "$"),
    ({"share": _Real("inf")}, "inf", "$"),
    ("\ud800", "surrogates", "$"),
]


class PayloadLaws:
    async def test_a_payload_may_hold_the_id_of_a_message_and_other_common_types(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue({"n": 1})
            await q.remove(id)
            for given, expected in [*_ENCODED, ({"parent": id}, {"parent": str(id)})]:
                with note_case(given):
                    await q.enqueue([given])
                    [message] = await q.claim(state=True)
                    assert message.json() == expected
                    await message.save_state(given)
                    assert message.state == expected
                    await message.ack()

    async def test_the_error_for_an_unencodable_payload_names_its_type_and_path(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_retries=1)
            for given, kind, path in _REFUSED:
                with note_case(given):
                    with pytest.raises(InvalidArgument) as refused:
                        await q.enqueue([{"fine": True}, given])
                    assert kind in refused.value.message
                    assert f"at {path};" in refused.value.message
            assert (await q.stats()).ready == 0

    async def test_names_and_options_can_be_subclasses_of_str(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue(_Queue.MAIL, tenant=_Text("acme"))
            [first] = await q.enqueue({"n": 1})
            [second] = await q.enqueue(
                {"n": 2},
                key=first,
                group=first,
                headers={"parent": first, _Text("kind"): _Queue.MAIL},
                correlation_id=first,
                content_type=_Text("application/json"),
                priority=_Level.HIGH,
            )
            assert second.correlation_id == first
            found = await q.list(filter={"headers": {"parent": first}, "ids": [second]})
            assert [each.id for each in found] == [second]
            message, *_ = await q.claim(limit=1, owner=_Text("me"), ledger=(_Text("reader"), 1))
            assert (message.id, message.headers) == (second, {"parent": first, "kind": "mail"})
            assert len(await q.ledger(_Text("reader"))) == 1
            held = await q.list(filter=Filter(owner=_Text("me"), headers={"parent": first}))
            assert [each.id for each in held] == [second]
            await message.progress(10, _Text("begun"))
            await message.nack(_Text("not now"), delay=0)
            assert (await q.get(second)).last_error == "not now"
            await q.schedule(_Text("nightly"), cron=_Text("0 3 * * *"), payload={"parent": first}, group=first)
            assert [each.name for each in await q.schedules()] == ["nightly"]
