"""Calls that are no calls: refused by the place of what is wrong."""

from typing import Any

import msgspec
import pytest

from holdfast.doors.framed.reading import NotMessagePack, parse_call
from holdfast.model.errors import InvalidArgument


def as_call(*places: Any) -> bytes:
    return msgspec.msgpack.encode(places)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (as_call("fly", None, None, None), "operation"),
        (as_call(5, None, None, None), "operation"),
        (as_call("enqueue", None, None), "call"),
        (as_call("enqueue", 1, None, None, []), "[1]"),
        (as_call("enqueue", None, None, {"caller": "x"}, []), "[3]"),
        (as_call("enqueue", None, None, None, [[b"x"]], "more"), "call"),
        (as_call("enqueue", None, None, None, [["text"]]), "[4][0][0]"),
        (as_call("enqueue", None, None, None, [[b"", "t", {}, 1, 0, *[None] * 7, [0, 1, 2]]]), "[4][0][12]"),
        (as_call("settle", None, None, None, [["ack", [-1, b"t" * 16, 1]]]), "[4][0][1][0]"),
        (as_call("settle", None, None, None, [["ack", [1 << 63, b"t" * 16, 1]]]), "[4][0][1][0]"),
        (as_call("settle", None, None, None, [["ack", [1, b"t" * 15, 1]]]), "[4][0][1][1]"),
        (as_call("settle", None, None, None, [["ack", [1, b"t" * 16, -1]]]), "[4][0][1][2]"),
        (as_call("settle", None, None, None, [["keep", [1, b"t" * 16, 1]]]), "[4][0][0]"),
        (as_call("browse", None, None, None, {"limit": "x"}), "limit"),
        (msgspec.msgpack.encode({"operation": "stats"}), "call"),
    ],
)
def test_a_value_of_the_wrong_shape_is_refused_by_its_place(body: bytes, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_call(body)
    assert caught.value.facts["field"] == field


@pytest.mark.parametrize("body", [b"", b"\xc1", as_call("stats", None, None, None) + b"\0"])
def test_what_is_no_messagepack_is_told_apart(body: bytes) -> None:
    with pytest.raises(NotMessagePack):
        parse_call(body)


@pytest.mark.parametrize("body", [b"\x94\xa5stats\xa1\xff\xc0\xc0", b"\x91" * 100_000])
def test_text_that_is_not_utf8_and_deep_nesting_are_wrong_shapes(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_call(body)
