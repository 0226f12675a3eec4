"""docs/framed.md: its tables are the code's, and its example is what both sides write."""

import re
from pathlib import Path

import pytest

from holdfast.model.errors import ERRORS_BY_CODE
from holdfast.wire.framed import answers
from holdfast.wire.framed.calls import HOT_CALLS, NAMED, operation_of, read_call
from holdfast.wire.framed.frames import Frame, FrameKind, FrameReader
from holdfast.wire.framed.greetings import ClientHello, read_client_hello, read_server_hello

PAGE = (Path(__file__).parents[2] / "docs" / "framed.md").read_text()


def example() -> list[tuple[str, Frame]]:
    """Return the frames of the example, each with the side that sends it."""
    lines = re.findall(r"^([<>]) ([0-9a-f ]+)$", PAGE, re.MULTILINE)
    frames: list[tuple[str, Frame]] = []
    for side, text in lines:
        reader = FrameReader(1 << 20)
        [frame] = reader.feed(bytes.fromhex(text))
        assert reader.failure is None
        assert not reader.missing
        frames.append((side, frame))
    return frames


def test_every_frame_of_the_example_is_whole_and_read_by_the_other_side() -> None:
    told: list[str] = []
    for side, (kind, _, body) in example():
        match FrameKind(kind):
            case FrameKind.HELLO if side == ">":
                assert read_client_hello(body) == ClientHello(1, None, "my-tool", "1")
            case FrameKind.HELLO:
                assert read_server_hello(body).max_calls == 4_096
            case FrameKind.CALL:
                told.append(operation_of(read_call(body)))
            case FrameKind.CANCEL:
                assert body == b""
            case _:
                assert kind == FrameKind.RESULT
    assert told == ["enqueue", "claim", "settle", "claim"]


def test_the_answers_of_the_example_are_read_as_the_page_says() -> None:
    enqueued, claimed, settled, nothing = [body for _, (kind, _, body) in example() if kind == FrameKind.RESULT]
    [message] = answers.read_enqueued(enqueued)
    [delivery] = answers.read_claimed(claimed).deliveries
    [result] = answers.read_results(settled)
    assert message.snowflake == delivery.snowflake == delivery.receipt.id == result.snowflake
    assert (delivery.payload, result.ok, result.state) == (b"hi", True, "succeeded")
    assert answers.read_claimed(nothing).deliveries == []


@pytest.mark.spec("8.15")
@pytest.mark.parametrize("kind", FrameKind)
def test_every_kind_of_frame_is_in_the_table(kind: FrameKind) -> None:
    assert re.search(rf"^\| {kind.value} \| {kind.name} \|", PAGE, re.MULTILINE)


def test_every_operation_and_error_is_named() -> None:
    names = [operation_of(each) for each in HOT_CALLS]
    for name in [*names, *NAMED, *ERRORS_BY_CODE]:
        assert f"`{name}`" in PAGE, name
