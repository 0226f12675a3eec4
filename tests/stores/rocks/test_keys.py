"""The keys of the embedded store: fixed widths, one module, healed indexes."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.ids import to_bytes
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.verify.store_check import verify
from tests.crash.rocks import open_store, sweep
from tests.stores.rocks.made_store import DIRECTORY, IX, JOBS, LE, LI, VI, Damager, M, Made, make_healthy

PAGE = Path(__file__).parents[3] / "docs" / "stores" / "rocksdb.md"

P, ID, TIME, HASH = keys.P_SIZE, keys.ID_SIZE, 8, keys.HASH_SIZE
# The widths of the keys of each space whose last part is no name.
WIDTHS = {
    (M, b""): P + ID,
    (VI, b""): P + 1 + TIME + ID,
    (LE, b""): P + ID,
    (LI, b""): P + TIME + ID,
    (keys.JOURNAL, b""): 8,
    (IX, keys.LIVES): 1 + P + ID,
    (IX, keys.DELAYED): 1 + P + TIME + ID,
    (IX, keys.DEAD): 1 + P + ID,
    (IX, keys.TTLS): 1 + TIME + P + ID,
    (IX, keys.KEPT): 1 + TIME + P + ID,
    (IX, keys.STATES): 1 + P + ID,
    (IX, keys.GROUPS): 1 + P + HASH + ID + 1 + TIME,
    (IX, keys.BUSY): 1 + P + HASH,
    (IX, keys.GROUP_VISIBLE): 1 + P + TIME + ID,
    (IX, keys.PIECES): 1 + 8 + 4,
    (IX, keys.LEDGER): 1 + P + HASH + 8,
    (IX, keys.CLOSED): 1 + P + HASH,
    (DIRECTORY, keys.QUEUE_NAMES): 2 + P,
    (DIRECTORY, keys.COUNTERS): 2 + P,
}

numbers = st.integers(0, (1 << 32) - 1)
instants = st.integers(0, (1 << 64) - 1)
# Of one node, whose ids sort alike in both spellings.
snowflakes = st.builds(lambda ms, sequence: ms << 22 | sequence, st.integers(0, (1 << 41) - 1), st.integers(0, 4095))
places = st.tuples(numbers, numbers, st.integers(0, 255), instants, snowflakes)


def visible_key(place: tuple[int, int, int, int, int]) -> bytes:
    tenant_id, queue_id, priority, at, id = place
    return keys.level(keys.prefix(tenant_id, queue_id), priority) + keys.instant(at) + to_bytes(id)


@pytest.mark.spec("4.1", "4.2", "2.14")
@given(places, places)
def test_keys_sort_as_their_parts_and_stay_within_the_bounds_of_their_queue(
    one: tuple[int, int, int, int, int], other: tuple[int, int, int, int, int]
) -> None:
    assert (visible_key(one) < visible_key(other)) == (one < other)
    p = keys.prefix(*one[:2])
    assert keys.parse_prefix(p) == one[:2]
    if p != b"\xff" * P:
        assert (p <= visible_key(other) < keys.after(p)) == (one[:2] == other[:2])


@pytest.mark.spec("4.1")
def test_the_keys_of_a_space_have_one_width(tmp_path: Path) -> None:
    damager = Damager(make_healthy(tmp_path / "data"))
    try:
        widths = {space: {len(key) for key in every_key(damager, *space)} for space in WIDTHS}
    finally:
        damager.close()

    assert widths == {space: {width} for space, width in WIDTHS.items()}


def every_key(damager: Damager, family: int, lead: bytes) -> list[bytes]:
    if lead:
        return damager.keys(family, lead)
    return [key for first in range(255) for key in damager.keys(family, bytes([first]))]


@pytest.mark.spec("4.1")
def test_the_page_lists_every_space() -> None:
    section = PAGE.read_text("utf-8").partition("\n## Keys\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|([^|]+)\|", section, re.MULTILINE))))
    spaces = {
        value.decode() for name, value in vars(keys).items() if name.isupper() and isinstance(value, bytes) and value
    }

    assert len(spaces) >= 20
    assert listed == spaces | set(keys.FAMILY_NAMES)


@pytest.mark.spec("4.5")
def test_stale_index_entries_are_deleted_by_the_claims_and_sweeps_that_meet_them(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with open_store(path) as hf:
        hf.queue("jobs", tenant="acme").enqueue([b"in flight", b"0", b"1", b"2"])
        hf.queue("jobs", tenant="acme").claim(lease="1h")
    damager = Damager(Made(path))
    for number in range(1, 41):
        damager.put(VI, keys.level(JOBS, 100) + keys.instant(number) + to_bytes(number), b"")
        damager.put(LI, JOBS + keys.instant(number) + to_bytes(number), b"")
    damager.close()
    assert verify(path).violation_count == 80

    with open_store(path) as hf:
        claimed = [message.payload for _ in range(2) for message in hf.queue("jobs", tenant="acme").claim(limit=2)]
        sweep(hf)

    assert claimed == [b"0", b"1", b"2"]
    assert verify(path).violations == []
