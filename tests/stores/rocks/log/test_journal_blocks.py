"""Blocks of the journal: events as rows, and many similar events as columns."""

import msgspec
import pytest

from holdfast.model.message import Draft, make_envelope
from holdfast.model.policy import QueuePolicy
from holdfast.model.rules import lifecycle
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.journal.event_blocks import EventRows, EventRun, Row, decode_rows, encode_parts, encode_rows
from holdfast.stores.rocks.queues.stored_message import StoredMessage

P = keys.prefix(1, 2)
ROW: Row = (P, 5, 3, 77, 1, 2, 100, 4, None, 9, "an error", "a reason", "mine")


def entries_of(drafts: list[Draft], life: Life) -> list[StoredMessage]:
    return [
        StoredMessage(P, make_envelope(draft, id, 1_000), life, keys.id_bytes(id), draft.bytes)
        for id, draft in enumerate(drafts, 50)
    ]


def in_flight(life: Life, claimed_at: int) -> Life:
    after = lifecycle.claim(life, QueuePolicy(), claimed_at, token=b"t" * 16, lease_ms=1_000).life
    assert after is not None
    return after


def test_a_run_has_the_rows_of_its_events() -> None:
    drafts = [Draft(payload=b"1"), Draft(payload=b"22", correlation_id="mine")]
    life = lifecycle.first_life(drafts[0], None, 1_000)
    entries = entries_of(drafts, life)
    assert EventRun.of_fresh(P, 1_000, 0, entries, life).rows == [
        (P, 1_000, 0, 50, 0, 0, 100, 1_000, None, 1, None, None, None),
        (P, 1_000, 0, 51, 0, 0, 100, 1_000, None, 2, None, None, "mine"),
    ]
    lives = [in_flight(life, 2_000), in_flight(in_flight_again(life), 2_001)]
    assert EventRun.of_changed(P, 2_001, 1, entries, lives).rows == [
        (P, 2_001, 1, 50, 1, 1, 100, 1_000, 2_000, 1, None, None, None),
        (P, 2_001, 1, 51, 5, 5, 100, 1_000, 2_001, 2, None, None, "mine"),
    ]


def in_flight_again(life: Life) -> Life:
    return msgspec.structs.replace(life, attempt=4, version=4)


def test_a_lease_that_ends_with_the_event_is_named() -> None:
    drafts = [Draft(payload=b"1")]
    claimed = in_flight(lifecycle.first_life(drafts[0], None, 1_000), 2_000)
    acked = lifecycle.ack(claimed, QueuePolicy(), 3_000).life
    assert acked is not None
    [row] = EventRun.of_changed(P, 3_000, 2, entries_of(drafts, claimed), [acked]).rows
    assert row[8] == 2_000


def test_a_block_keeps_the_order_of_single_events_and_runs() -> None:
    drafts = [Draft(payload=b"1"), Draft(payload=b"2")]
    life = lifecycle.first_life(drafts[0], None, 1_000)
    run = EventRun.of_fresh(P, 1_000, 0, entries_of(drafts, life), life)
    block = encode_parts([EventRows([ROW]), run, EventRows([ROW, ROW])])
    assert decode_rows(block) == [ROW, *run.rows, ROW, ROW]


def test_a_block_of_single_events_is_as_in_the_formats_before() -> None:
    assert encode_parts([EventRows([ROW, ROW])]) == encode_rows([ROW, ROW])
    assert decode_rows(msgspec.msgpack.encode([ROW, ROW])) == [ROW, ROW]


@pytest.mark.parametrize("block", [b"", b"\xc1", b"\xc1\x91\x90", b"\xc1\x91\x92\x07\x90"])
def test_a_damaged_block_is_refused(block: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_rows(block)


def test_a_run_whose_columns_have_different_lengths_is_refused() -> None:
    drafts = [Draft(payload=b"1"), Draft(payload=b"22")]
    life = lifecycle.first_life(drafts[0], None, 1_000)
    run = EventRun.of_fresh(P, 1_000, 0, entries_of(drafts, life), life)
    run.sizes = [1, 2, 3]
    with pytest.raises(msgspec.MsgspecError, match="columns of different lengths"):
        decode_rows(encode_parts([run]))
