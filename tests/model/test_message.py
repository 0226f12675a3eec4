import base64
import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidArgument, PayloadTooLarge
from holdfast.model.ids import MAX_ID, to_uuid
from holdfast.model.message import (
    BYTES,
    MAX_BATCH,
    MAX_HEADERS_BYTES,
    Draft,
    Envelope,
    NewMessage,
    Receipt,
    check_draft,
    check_drafts,
    normalise_correlation_id,
)
from holdfast.model.parsing.durations import MAX_MS

LIMIT = 1_000

receipts = st.builds(
    Receipt, id=st.integers(0, MAX_ID), token=st.binary(min_size=16, max_size=16), version=st.integers(0, (1 << 64) - 1)
)


@pytest.mark.spec("2.5")
@given(receipts)
def test_a_receipt_written_and_read_is_the_same(receipt: Receipt) -> None:
    text = str(receipt)

    assert Receipt.parse(text) == receipt
    assert Receipt.parse(receipt) is receipt
    assert set(text) <= set(string.ascii_letters + string.digits + "-_")
    assert len(text) == 54


@given(receipts, receipts)
def test_two_receipts_have_two_texts(one: Receipt, other: Receipt) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(receipts, st.integers(0, 319))
def test_a_flipped_bit_gives_another_receipt_or_none_and_never_a_crash(receipt: Receipt, bit: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(str(receipt) + "=="))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        parsed = Receipt.parse(base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode())
    except InvalidArgument:
        return
    assert parsed != receipt


@given(receipts, st.integers(0, 53), st.characters())
def test_a_changed_character_gives_another_receipt_or_none_and_never_a_crash(
    receipt: Receipt, at: int, character: str
) -> None:
    text = str(receipt)
    changed = text[:at] + character + text[at + 1 :]
    try:
        parsed = Receipt.parse(changed)
    except InvalidArgument:
        return
    # Four bits of the last character are unused; another spelling of them must not be another receipt.
    assert parsed != receipt or changed == text or at == 53


@given(receipts, st.integers(0, 120))
def test_a_receipt_of_another_length_is_refused(receipt: Receipt, length: int) -> None:
    text = (str(receipt) * 3)[:length]
    if length != 54:
        with pytest.raises(InvalidArgument):
            Receipt.parse(text)


@given(st.one_of(st.text(), st.binary(), st.none(), st.integers(), st.text(min_size=54, max_size=54)))
def test_any_value_at_all_is_a_receipt_or_refused(value: object) -> None:
    with suppress(InvalidArgument):
        assert str(Receipt.parse(value))


@pytest.mark.parametrize("padding", ["=", "==", "\n", " "])
def test_padding_and_blanks_are_no_part_of_a_receipt(padding: str) -> None:
    text = str(Receipt(1, bytes(16), 1))
    for wrong in (text + padding, padding + text, text[: -len(padding)] + padding):
        with pytest.raises(InvalidArgument):
            Receipt.parse(wrong)


# --- Drafts ------------------------------------------------------------------------------------------------------


def test_a_draft_of_nothing_but_a_payload_is_fine() -> None:
    check_draft(Draft(payload=b""), LIMIT)


@given(
    st.builds(
        Draft,
        payload=st.binary(max_size=LIMIT),
        headers=st.dictionaries(st.text("abc", min_size=1), st.text(st.characters(codec="utf-8")), max_size=3),
        priority=st.integers(0, 255),
        delay_ms=st.integers(0, MAX_MS),
        ttl_ms=st.none() | st.integers(1, MAX_MS),
        key=st.none() | st.text("kK-9é", min_size=1, max_size=256),
        group=st.none() | st.text("gG-9é", min_size=1, max_size=256),
        max_retries=st.none() | st.integers(0, 1_000_000),
    )
)
def test_a_draft_within_every_limit_is_fine(draft: Draft) -> None:
    check_draft(draft, LIMIT)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("priority", [-1, 256, 1.0, True, None, "5"]),
        ("delay_ms", [-1, MAX_MS + 1, 1.5, True, None]),
        ("deliver_at", [-1, MAX_MS + 1, 1.5, True, "soon"]),
        ("ttl_ms", [0, -1, MAX_MS + 1, 1.5, True]),
        ("max_retries", [-1, 1_000_001, 1.0, True]),
        ("key", ["", "x" * 257, "a\n", "a\x00", "\ud800", 5, b"k"]),
        ("group", ["", "x" * 257, "a\tb", "\u2028", "\ud800", 5]),
        ("content_type", ["", "x" * 257, "text/plain\r\nX: y", 5]),
        ("headers", [{"": "x"}, {"a": 1}, {1: "a"}, {"a": None}, {"a": "\ud800"}, [("a", "b")], "ab"]),
    ],
)
def test_what_no_queue_can_hold_is_refused_with_the_name_of_the_field(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(InvalidArgument) as refused:
            check_draft(Draft(**{"payload": b"", field: value}), LIMIT)  # type: ignore[arg-type]  # fields of several types
        assert refused.value.facts["field"] == field.removesuffix("_ms"), value


def test_a_delay_and_an_instant_of_delivery_exclude_each_other() -> None:
    check_draft(Draft(payload=b"", deliver_at=5), LIMIT)
    with pytest.raises(InvalidArgument):
        check_draft(Draft(payload=b"", deliver_at=5, delay_ms=1), LIMIT)


def test_a_payload_may_be_as_long_as_the_limit_and_no_longer() -> None:
    check_draft(Draft(payload=bytes(LIMIT)), LIMIT)
    with pytest.raises(PayloadTooLarge) as refused:
        check_draft(Draft(payload=bytes(LIMIT + 1)), LIMIT)
    assert refused.value.facts == {"bytes": LIMIT + 1, "limit": LIMIT}


def test_headers_may_have_64_kib_in_all_and_no_more() -> None:
    check_draft(Draft(payload=b"", headers={"é": "x" * (MAX_HEADERS_BYTES - 2)}), LIMIT)
    with pytest.raises(InvalidArgument):
        check_draft(Draft(payload=b"", headers={"é": "x" * (MAX_HEADERS_BYTES - 1)}), LIMIT)


@given(st.binary(max_size=50), st.dictionaries(st.text("aé", min_size=1), st.text("bü名"), max_size=3))
def test_bytes_are_the_payload_s_and_the_headers_in_utf_8(payload: bytes, headers: dict[str, str]) -> None:
    expected = len(payload) + len("".join([*headers, *headers.values()]).encode())

    assert Draft(payload=payload, headers=headers).bytes == expected
    assert Envelope(id=1, enqueued_at=0, payload=payload, headers=headers).bytes == expected


def test_a_new_message_keeps_the_options_it_was_given_and_no_others() -> None:
    message = NewMessage({"n": 1}, key="a", priority=0, delay="5s")

    assert message.payload == {"n": 1}
    assert message.options == {"key": "a", "priority": 0, "delay": "5s"}
    assert repr(message) == "NewMessage({'n': 1}, priority=0, delay='5s', key='a')"
    assert NewMessage(None).options == {}
    assert Draft(payload=b"").content_type == BYTES


# --- Correlation ids ---------------------------------------------------------------------------------------------


@pytest.mark.spec("1.5")
@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128), st.text(" \t\r\n"))
def test_a_correlation_id_of_visible_ascii_is_kept_and_trimmed(id: str, blank: str) -> None:
    assert normalise_correlation_id(blank + id + blank) == id


@pytest.mark.spec("1.5")
@pytest.mark.parametrize("value", ["", " ", "a b", "a\nb", "a\x00", "é", "x" * 129, "\x7f", None, 5, b"abc", ["a"]])
def test_any_other_correlation_id_is_as_good_as_none(value: object) -> None:
    assert normalise_correlation_id(value) is None


@given(st.integers(0, MAX_ID))
def test_a_minted_correlation_id_is_the_id_s_own_text(id: int) -> None:
    assert Envelope(id=id, enqueued_at=0, payload=b"").correlation_id == to_uuid(id)
    assert Envelope(id=id, enqueued_at=0, payload=b"", given_correlation_id="ours").correlation_id == "ours"


@pytest.mark.spec("3.1")
def test_a_call_enqueues_at_most_a_batch() -> None:
    draft = Draft(payload=b"x")
    check_drafts([draft] * MAX_BATCH, LIMIT)
    words = f"a call enqueues at most {MAX_BATCH} messages, not {MAX_BATCH + 1}"
    with pytest.raises(InvalidArgument, match=words) as refused:
        check_drafts([draft] * (MAX_BATCH + 1), LIMIT)
    assert refused.value.facts["field"] == "messages"


def test_a_batch_with_one_draft_that_no_queue_can_hold_is_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        check_drafts([Draft(payload=b"x"), Draft(payload=b"x" * (LIMIT + 1))], LIMIT)
