import pickle
import uuid
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import (
    EPOCH_MS,
    MAX_ID,
    NODES,
    SEQUENCES,
    IdMaker,
    MessageId,
    consecutive_to_bytes,
    from_bytes,
    message_ids,
    parse_id,
    to_bytes,
    to_uuid,
)

NOW_MS = 1_750_000_000_000

milliseconds = st.integers(0, (1 << 41) - 1)
nodes = st.integers(0, NODES - 1)
sequences = st.integers(0, SEQUENCES - 1)
snowflakes = st.integers(0, MAX_ID)


@pytest.mark.spec("1.4")
def test_the_epoch_is_the_first_instant_of_2024() -> None:
    assert EPOCH_MS == 1_704_067_200_000
    assert (NODES, SEQUENCES) == (1_024, 4_096)


@pytest.mark.spec("1.4")
@given(milliseconds, nodes, sequences)
def test_a_snowflake_is_41_bits_of_time_10_of_node_and_12_of_sequence(ms: int, node: int, sequence: int) -> None:
    spelled = uuid.UUID(to_uuid(ms << 22 | node << 12 | sequence))

    assert spelled.int >> 80 == ms + EPOCH_MS
    assert spelled.int >> 64 & 0xFFF == sequence
    assert spelled.int >> 52 & 0x3FF == node
    assert spelled.int & ((1 << 52) - 1) == 0


@pytest.mark.spec("1.4")
@given(snowflakes)
def test_the_uuid_has_version_7_and_the_variant_of_rfc_9562(snowflake: int) -> None:
    spelled = uuid.UUID(to_uuid(snowflake))

    assert spelled.version == 7
    assert spelled.variant == uuid.RFC_4122
    assert str(spelled) == to_uuid(snowflake)


@pytest.mark.spec("1.4")
@given(snowflakes)
def test_each_spelling_gives_the_other(snowflake: int) -> None:
    text = to_uuid(snowflake)

    assert from_bytes(to_bytes(snowflake)) == snowflake
    assert to_bytes(snowflake) == uuid.UUID(text).bytes
    assert parse_id(text) == parse_id(text.upper()) == parse_id(snowflake) == parse_id(str(snowflake)) == snowflake
    assert parse_id(MessageId(snowflake)) == snowflake


@pytest.mark.spec("1.4")
@given(snowflakes, st.integers(0, 127))
def test_bytes_in_which_any_fixed_bit_differs_are_no_id(snowflake: int, bit: int) -> None:
    changed = (int.from_bytes(to_bytes(snowflake), "big") ^ 1 << bit).to_bytes(16, "big")
    try:
        read = from_bytes(changed)
    except InvalidArgument:
        return
    assert to_bytes(read) == changed


@given(nodes, milliseconds, milliseconds)
def test_both_spellings_of_one_node_s_ids_sort_alike(node: int, one_ms: int, other_ms: int) -> None:
    one, other = one_ms << 22 | node << 12, other_ms << 22 | node << 12

    assert (one < other) == (to_bytes(one) < to_bytes(other)) == (to_uuid(one) < to_uuid(other))


@pytest.mark.spec("1.4")
@given(nodes, st.lists(st.tuples(st.integers(-5_000, 5_000), st.integers(0, 5)), max_size=30))
def test_ids_of_one_node_strictly_rise_whatever_the_clock_does(node: int, takes: list[tuple[int, int]]) -> None:
    maker = IdMaker(node)
    ids = [id for off_ms, number in takes for id in maker.take(number, NOW_MS + off_ms)]

    assert all(earlier < later for earlier, later in pairwise(ids))
    assert all(id >> 12 & 0x3FF == node for id in ids)
    assert all(0 <= id <= MAX_ID for id in ids)


def test_an_id_has_the_time_it_was_made() -> None:
    [id] = IdMaker(7).take(1, NOW_MS)

    assert id == (NOW_MS - EPOCH_MS) << 22 | 7 << 12


@pytest.mark.parametrize("years", [68, 70, 100, 10_000])
def test_a_clock_beyond_the_range_of_ids_gives_ids_that_can_be_read_again(years: int) -> None:
    maker = IdMaker(5)
    before = maker.take(3, EPOCH_MS + 1)
    far = maker.take(5_000, EPOCH_MS + years * 365 * 86_400_000)
    after = maker.take(3, EPOCH_MS + 2)
    ids = [*before, *far, *after]
    assert ids == sorted(set(ids))
    assert [parse_id(to_uuid(id)) for id in ids] == [parse_id(id) for id in ids] == ids


def test_a_millisecond_that_is_used_up_borrows_from_the_next() -> None:
    maker = IdMaker(7)
    ids = maker.take(SEQUENCES + 2, NOW_MS)

    assert len(set(ids)) == SEQUENCES + 2
    assert ids == sorted(ids)
    assert ids[SEQUENCES - 1] & 0xFFF == SEQUENCES - 1
    assert [id >> 22 for id in ids[SEQUENCES - 1 :]] == [at + NOW_MS - EPOCH_MS for at in (0, 1, 1)]
    assert maker.take(1, NOW_MS)[0] == ids[-1] + 1


@given(nodes, nodes, st.integers(0, 10_000), st.integers(-60_000, 60_000))
def test_a_node_continues_above_the_highest_id_it_gave(node: int, successor: int, number: int, step_ms: int) -> None:
    maker = IdMaker(node)
    given_ids = maker.take(number + 1, NOW_MS)
    assert maker.highest == given_ids[-1]

    [id] = IdMaker(node, highest=maker.highest).take(1, NOW_MS + step_ms)
    assert id > given_ids[-1]

    # For another node the time must be higher, because the node's bits are above those of the sequence.
    [other] = IdMaker(successor, highest=maker.highest).take(1, NOW_MS + step_ms)
    assert other not in given_ids
    assert to_bytes(other)[:8] > to_bytes(given_ids[-1])[:8]


@pytest.mark.parametrize("node", [-1, NODES])
def test_a_node_number_has_10_bits(node: int) -> None:
    with pytest.raises(InvalidArgument):
        IdMaker(node)


@given(st.uuids())
def test_a_foreign_uuid_is_refused_or_is_spelled_exactly_as_ours(foreign: uuid.UUID) -> None:
    try:
        snowflake = parse_id(str(foreign))
    except InvalidArgument:
        return
    assert to_uuid(snowflake) == str(foreign)


@pytest.mark.parametrize(
    "foreign",
    [
        "6f1c2f0e-3b0a-4d6e-9f0b-2a7c5d1e8f90",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        # Valid ids except for one bit of the version, the variant or the fixed part; and a time before the epoch.
        "01977420-dc00-6000-8000-000000000000",
        "01977420-dc00-7000-c000-000000000000",
        "01977420-dc00-7000-8000-000000000001",
        "00000000-0001-7000-8000-000000000000",
    ],
)
def test_a_uuid_that_no_node_of_ours_made_is_refused(foreign: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_id(foreign)


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 1.0, -1, MAX_ID + 1, 1 << 200, "", " ", "-1", "+1", "1.0", "0x10", "1_000", "١٢", "9" * 19,
        "9" * 20, str(MAX_ID + 1), "g" * 36, "-" * 36, "0" * 36 + "\n", b"1", [], {},
        to_uuid(1) + "\n", " " + to_uuid(1), to_uuid(1).replace("-", ""), "{" + to_uuid(1)[1:-1] + "}",
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_id_is_refused_as_an_invalid_argument(value: object) -> None:
    with pytest.raises(InvalidArgument):
        parse_id(value)


@given(st.one_of(st.text(), st.text("0123456789abcdef-", min_size=34, max_size=38), st.integers(), st.binary()))
def test_any_value_at_all_is_an_id_or_refused(value: object) -> None:
    with suppress(InvalidArgument):
        assert 0 <= parse_id(value) <= MAX_ID


@given(snowflakes, st.booleans(), st.sampled_from(["", "ours"]))
def test_a_message_id_is_a_text_with_what_the_enqueue_answered(snowflake: int, duplicate: bool, given_id: str) -> None:
    id = MessageId(snowflake, given_id, duplicate)

    assert isinstance(id, str)
    assert id == to_uuid(snowflake)
    assert {id: 1}[to_uuid(snowflake)] == 1
    assert (id.snowflake, id.duplicate, id.correlation_id) == (snowflake, duplicate, given_id or to_uuid(snowflake))


@given(snowflakes, st.booleans(), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_message_id_survives_pickling(snowflake: int, duplicate: bool, protocol: int) -> None:
    id = MessageId(snowflake, "ours", duplicate)
    if protocol < 2:
        protocol = 2
    again = pickle.loads(pickle.dumps(id, protocol))

    assert type(again) is MessageId
    assert again == id
    assert (again.snowflake, again.duplicate, again.correlation_id) == (id.snowflake, id.duplicate, id.correlation_id)


@pytest.mark.parametrize("first", [0, 5, SEQUENCES - 3, (1 << 40) + 7])
def test_the_bytes_of_many_ids_are_those_of_each(first: int) -> None:
    consecutive = list(range(first, first + 10))
    apart = [first, first + 1, first + (1 << 22), first + (1 << 22) + 5]
    in_any_order = [first, first + 7, first + 2]
    for snowflakes in (consecutive, apart, [first], in_any_order, consecutive[::-1]):
        assert consecutive_to_bytes(snowflakes) == [to_bytes(each) for each in snowflakes]


def test_many_message_ids_are_as_each_alone() -> None:
    snowflakes = [0, 5, 6, (1 << 40) + 7, (1 << 40) + (3 << 12) + 7, MAX_ID]
    given = [None, "mine", None, None, "yours", None]
    duplicates = [False, True, False, False, False, True]
    made = message_ids(snowflakes, given, duplicates)
    alone = [MessageId(*each) for each in zip(snowflakes, given, duplicates, strict=True)]
    for left, right in zip(made, alone, strict=True):
        assert (left, left.snowflake, left.correlation_id, left.duplicate) == (
            *(right, right.snowflake, right.correlation_id, right.duplicate),
        )
        assert type(left) is MessageId
