"""The example of docs/framed.md, sent to a door: it answers what the page says, but for ids, receipts and times."""

import re
from pathlib import Path

import msgspec
import pytest

from holdfast.testing import ManualClock
from holdfast.wire.framed.frames import FrameKind, FrameReader
from tests.doors.framed.frames_by_hand import connected
from tests.doors.framed.serving import serve_framed

PAGE = (Path(__file__).parents[3] / "docs" / "framed.md").read_text()


def lengths(value: object) -> object:
    """Return a value's shape: lists by what is in them, anything else by its type."""
    return [lengths(each) for each in value] if isinstance(value, list) else type(value)


@pytest.mark.spec("8.15")
async def test_a_door_answers_the_example_as_the_page_says(clock: ManualClock) -> None:
    lines = re.findall(r"^([<>]) ([0-9a-f ]+)$", PAGE, re.MULTILINE)
    answers = 0
    async with serve_framed(clock) as server, connected(server.port) as peer:
        for side, text in lines:
            [(kind, call, body)] = FrameReader(1 << 20).feed(bytes.fromhex(text))
            if side == ">":
                peer.write(kind, call, body)
                continue
            answers += 1
            told_kind, _, told = await peer.next_of(call)
            assert told_kind == kind
            if kind == FrameKind.RESULT and call != 3:  # the receipt of the page's ack is of another message
                assert lengths(msgspec.msgpack.decode(told)) == lengths(msgspec.msgpack.decode(body))
    assert answers == 5
