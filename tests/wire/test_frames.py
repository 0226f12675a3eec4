"""Frames: cut from any number of reads, bounded, and never held for what was only promised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.framed.frames import CONNECTION, Frame, FrameKind, FrameReader, write_frame

MAX = 1_000

frames = st.tuples(st.sampled_from(FrameKind), st.integers(0, 2**32 - 1), st.binary(max_size=50))


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 40), max_size=40))
def test_frames_come_out_as_they_went_in_however_they_were_cut(written: list[Frame], cuts: list[int]) -> None:
    data = b"".join(write_frame(*each) for each in written)
    reader, read = FrameReader(MAX), []
    for size in [*cuts, len(data)]:
        read += reader.feed(data[:size])
        data = data[size:]
    assert read == written
    assert reader.failure is None
    assert reader.missing == 0


@pytest.mark.parametrize(
    "start", [b"GET /healthz HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0\0\0\4\1\0\0\0\0"]
)
def test_a_length_that_is_no_frames_is_a_failure_that_says_what_was_expected(start: bytes) -> None:
    reader = FrameReader(MAX)
    assert reader.feed(start) == []
    assert "framed protocol, not HTTP" in (reader.failure or "")
    assert reader.feed(write_frame(FrameKind.PING, CONNECTION)) == []


def test_the_length_alone_is_enough_to_refuse_a_frame() -> None:
    reader = FrameReader(MAX)
    reader.feed(b"GET")
    assert reader.failure is None
    reader.feed(b" ")
    assert reader.failure is not None


def test_frames_before_a_bad_one_are_read() -> None:
    reader = FrameReader(MAX)
    good = (FrameKind.PING, CONNECTION, b"x")
    assert reader.feed(write_frame(*good) + b"GET /") == [good]
    assert reader.failure is not None


def test_a_frame_of_the_greatest_length_is_read_and_one_more_byte_is_refused() -> None:
    body = b"x" * (MAX - 5)
    reader = FrameReader(MAX)
    assert reader.feed(write_frame(FrameKind.DATA, 1, body)) == [(FrameKind.DATA, 1, body)]
    reader.feed(write_frame(FrameKind.DATA, 1, body + b"x"))
    assert reader.failure is not None


def test_a_frame_that_has_begun_says_how_much_is_missing() -> None:
    reader = FrameReader(MAX)
    frame = write_frame(FrameKind.DATA, 1, b"x" * 100)
    reader.feed(frame[:3])
    assert reader.missing == 4 - 3
    reader.feed(frame[3:20])
    assert reader.missing == len(frame) - 20
    reader.feed(frame[20:])
    assert reader.missing == 0
