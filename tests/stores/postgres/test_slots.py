"""Names spread over databases by slots."""

from collections import Counter

import pytest

from holdfast.model.errors import InvalidArgument
from holdfast.model.events import format_positions, parse_positions
from holdfast.stores.postgres.cluster.slots import SLOTS, fmix32, fnv32a, slot_of, spread


@pytest.mark.spec("5.2")
def test_the_hashes_are_the_published_ones() -> None:
    assert [fnv32a(text) for text in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    assert [fmix32(value) for value in (0, 1, 0xFFFFFFFF)] == [0, 0x514E28B7, 0x81F16F39]


@pytest.mark.spec("5.2")
@pytest.mark.parametrize("shards", [2, 3, 4, 8])
def test_correlated_names_spread_evenly(shards: int) -> None:
    slots = spread(shards)
    owners = Counter(slots[slot_of(f"tenant{n}", f"queue{n}")] for n in range(1, 1_001))

    assert len(owners) == shards
    assert all(0.85 * 1_000 / shards <= count <= 1.15 * 1_000 / shards for count in owners.values())


@pytest.mark.spec("5.2")
def test_each_shard_owns_as_many_slots_as_any_other() -> None:
    counts = Counter(spread(3)).values()

    assert sum(counts) == SLOTS
    assert max(counts) - min(counts) <= 1


def test_a_journal_position_is_one_number_per_shard() -> None:
    assert parse_positions(None, 2) == [0, 0]
    assert parse_positions(format_positions([7, 1 << 60]), 2) == [7, 1 << 60]
    # A database that came later is read from its beginning.
    assert parse_positions("7", 2) == [7, 0]
    for junk in ("", "-", "7-", "a", "1-2-3", "+7", "7" * 20, "²", 7):
        with pytest.raises(InvalidArgument):
            parse_positions(junk, 2)
