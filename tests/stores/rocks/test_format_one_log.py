"""Upgrade killed stores of format 1, whose commits are in RocksDB's own log.

The torn end of a log is cut, as a crash leaves it. A store with a damaged log is refused: no record is ever skipped.
The last part proves that an upgraded store is whole, and that the segments of its commit log are freed.
"""

import select
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.log import commit_log
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import FIRST_FRAME_AT, list_segments
from holdfast.stores.rocks.recovery.marker import WHOLE_STORE, read_marker
from holdfast.stores.rocks.recovery.wal_check import Damage, find_damage
from tests.crash.rocks import contents, copy_store, open_store
from tests.stores.rocks.damage import BLOCK, MESSAGES, cut, flip, log_of, payload, read_all, records_of
from tests.stores.rocks.format_one import kill_format_one

ROOT = Path(__file__).parents[3]
# No opening of these small stores takes so long, but for one that never ends.
PATIENCE_S = 60
SMALL = 5


@pytest.fixture(scope="module")
def killed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kill_format_one(tmp_path_factory.mktemp("killed"), [payload(number) for number in range(MESSAGES)])


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store whose log is so short that every bit of it can be flipped."""
    return kill_format_one(tmp_path_factory.mktemp("small"), [b"%04d" % number for number in range(SMALL)])


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store whose log has several blocks; some batches span two of them, one spans three."""
    sizes = [300, 20_000, 300, 300, 15_000, 40_000, 300, 300, 9_000, 300]
    return kill_format_one(tmp_path_factory.mktemp("long"), [b"%04d" % n * (size // 4) for n, size in enumerate(sizes)])


def damage_of(raw: bytes, directory: Path) -> Damage | None:
    (directory / "000004.log").write_bytes(raw)
    return find_damage(directory)


def take_all_frames(store: Path) -> None:
    """Take all frames out of the only segment of the commit log."""
    [segment] = (store / LOG).iterdir()
    raw = segment.read_bytes()
    segment.write_bytes(raw[:FIRST_FRAME_AT].ljust(len(raw), b"\0"))


def check_refused(store: Path, *, says: str = "restore a backup") -> StoreUnavailable:
    before = contents(store)
    with pytest.raises(StoreUnavailable, match=says) as raised:
        open_store(store)
    assert contents(store) == before
    return raised.value


# --- Flipped bits ----------------------------------------------------------------------------------------------------


class Flipper:
    """A process that flips bits of a store's log one at a time, and opens the store each time."""

    def __init__(self, store: Path, place: Path) -> None:
        place.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.rocks.flip_bits", str(store), str(place)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def open_with(self, at: int, bit: int) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"%d %d\n" % (at, bit))
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        assert ready, f"byte {at}, bit {bit}: the opening does not end"
        return self._process.stdout.readline().decode().strip()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def flippers(tmp_path: Path) -> Iterator[list[Flipper]]:
    started: list[Flipper] = []
    yield started
    for each in started:
        each.end()


def padding_of(log: Path) -> set[int]:
    """Return the offsets of the unused bytes at the ends of blocks, where no header fits."""
    covered = {at for start, length in records_of(log) for at in range(start, start + length)}
    return set(range(log.stat().st_size)) - covered


def check_flips(flipper: Flipper, store: Path, messages: int, flips: Iterable[tuple[int, int]]) -> None:
    """One flipped bit in a record always makes opening fail with a named error, and nothing is changed."""
    padding = padding_of(log_of(store))
    for at, bit in flips:
        came_of_it = flipper.open_with(at, bit)
        assert came_of_it == (str(messages) if at in padding else "refused"), f"byte {at}, bit {bit}: {came_of_it}"


def test_one_flipped_bit_in_each_byte_of_a_log_is_seen_before_it_is_replayed(small_store: Path, tmp_path: Path) -> None:
    raw = log_of(small_store).read_bytes()
    assert damage_of(raw, tmp_path) is None
    for at in range(len(raw)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        damage = damage_of(flipped, tmp_path)
        assert damage is not None, f"byte {at}"
        start = max(start for start, _ in records_of(log_of(small_store)) if start <= at)
        assert damage.at == start, f"byte {at}: the record begins at {start}, said was {damage}"


def test_a_flipped_bit_in_any_header_of_a_log_stops_the_opening(
    small_store: Path, tmp_path: Path, flippers: list[Flipper]
) -> None:
    flippers.append(Flipper(small_store, tmp_path / "place"))
    starts = [start for start, _ in records_of(log_of(small_store))]
    flips = [(start + offset, bit) for start in starts for offset in (4, 5, 6) for bit in range(8)]
    check_flips(flippers[0], small_store, SMALL, flips)


# Of the bytes that are tried: that each is seen is proved without an opening, above.
EVERY = [5, pytest.param(1, marks=pytest.mark.proof)]


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
def test_a_flipped_bit_in_any_byte_of_a_log_stops_the_opening(
    small_store: Path, tmp_path: Path, flippers: list[Flipper], every: int
) -> None:
    flippers.append(Flipper(small_store, tmp_path / "place"))
    size = log_of(small_store).stat().st_size
    check_flips(flippers[0], small_store, SMALL, [(at, at % 8) for at in range(0, size, every)])


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
def test_a_flipped_bit_in_a_log_of_many_blocks_stops_the_opening(
    long_store: Path, tmp_path: Path, flippers: list[Flipper], every: int
) -> None:
    flippers.append(Flipper(long_store, tmp_path / "place"))
    log = log_of(long_store)
    headers = [(start + offset, bit) for start, _ in records_of(log) for offset in range(7) for bit in range(8)]
    others = [(at, at % 8) for at in range(0, log.stat().st_size, 211)]
    flips = headers + others + [(at, 0) for at in padding_of(log)]
    check_flips(flippers[0], long_store, 10, flips[::every])


# --- Bytes that are gone ---------------------------------------------------------------------------------------------


def test_the_error_says_where_the_log_is_damaged_and_to_cut_it_there_opens_what_stands_before(
    tmp_path: Path, killed_store: Path
) -> None:
    store = copy_store(killed_store, tmp_path / "store")
    start, _ = records_of(log_of(store))[-10]
    flip(log_of(store), start + 5, bits=0x40)
    error = check_refused(store, says="restore a backup")
    assert error.facts["at"] == start
    assert f"`truncate -s {start} {log_of(store)}`" in error.message
    cut(log_of(store), start)
    assert read_all(store) == [payload(number) for number in range(MESSAGES - 10)]


def test_bytes_missing_from_the_middle_of_the_log_stop_the_opening(tmp_path: Path, killed_store: Path) -> None:
    raw = log_of(killed_store).read_bytes()
    middle = len(raw) // 2
    for number, damaged in enumerate(
        [raw[:middle] + raw[middle + 99 :], raw[:middle] + bytes(200) + raw[middle + 200 :]]
    ):
        store = copy_store(killed_store, tmp_path / str(number))
        log_of(store).write_bytes(damaged)
        check_refused(store)


def test_records_overwritten_by_zeros_stop_the_opening(tmp_path: Path, killed_store: Path, long_store: Path) -> None:
    """RocksDB itself goes on with the next block behind zeros."""
    for number, (store, first, last) in enumerate([(killed_store, 3, 3), (killed_store, 9, 30), (long_store, 4, 5)]):
        copy = copy_store(store, tmp_path / str(number))
        log, records = log_of(copy), records_of(log_of(copy))
        (start, _), (end, length) = records[first], records[last]
        raw = log.read_bytes()
        log.write_bytes(raw[:start] + bytes(end + length - start) + raw[end + length :])
        assert check_refused(copy).facts["at"] == start


def test_a_block_overwritten_by_zeros_stops_the_opening(tmp_path: Path, long_store: Path) -> None:
    for block in range(log_of(long_store).stat().st_size // BLOCK):
        store = copy_store(long_store, tmp_path / str(block))
        raw = log_of(store).read_bytes()
        log_of(store).write_bytes(raw[: block * BLOCK] + bytes(BLOCK) + raw[(block + 1) * BLOCK :])
        check_refused(store)


def test_a_log_that_is_gone_stops_the_opening(tmp_path: Path, killed_store: Path) -> None:
    store = copy_store(killed_store, tmp_path / "store")
    log_of(store).unlink()
    check_refused(store, says="has no log .* put the log back, or restore a backup")


# --- What a crash leaves ---------------------------------------------------------------------------------------------


def test_a_log_cut_anywhere_in_its_last_record_costs_that_record_alone(tmp_path: Path, small_store: Path) -> None:
    start, length = records_of(log_of(small_store))[-1]
    raw = log_of(small_store).read_bytes()
    for size in range(start, start + length):
        assert damage_of(raw[:size], tmp_path) is None, f"cut to {size}"


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
def test_a_store_whose_log_was_cut_anywhere_in_its_last_record_opens_with_the_others(
    tmp_path: Path, small_store: Path, every: int
) -> None:
    start, length = records_of(log_of(small_store))[-1]
    for size in range(start, start + length, every):
        store = copy_store(small_store, tmp_path / str(size))
        cut(log_of(store), size)
        assert read_all(store) == [b"%04d" % number for number in range(SMALL - 1)], f"cut to {size}"


def test_a_torn_tail_of_the_log_costs_the_last_record_alone(tmp_path: Path, killed_store: Path) -> None:
    """The last record may be cut at any byte, as by a power cut during its write."""
    start, length = records_of(log_of(killed_store))[-1]
    for size in (1, 6, 7, 8, length // 2, length - 1, length):
        store = copy_store(killed_store, tmp_path / str(size))
        cut(log_of(store), start + length - size)
        assert read_all(store) == [payload(number) for number in range(MESSAGES - 1)]


def test_a_longer_tail_that_is_gone_leaves_what_was_written_before_it(tmp_path: Path, killed_store: Path) -> None:
    records = records_of(log_of(killed_store))
    for lost in (2, 10, MESSAGES - 1):
        store = copy_store(killed_store, tmp_path / str(lost))
        cut(log_of(store), records[-lost][0] + 3)
        assert read_all(store) == [payload(number) for number in range(MESSAGES - lost)]


def test_a_log_cut_anywhere_is_no_damage(tmp_path: Path, long_store: Path) -> None:
    raw = log_of(long_store).read_bytes()
    near_blocks = [at for block in range(0, len(raw), BLOCK) for at in range(block, min(block + 40, len(raw)))]
    for size in [*near_blocks, *range(0, len(raw), 37)]:
        assert damage_of(raw[:size], tmp_path) is None, f"cut to {size}"


def test_zeros_behind_the_last_record_are_space_set_aside(tmp_path: Path, killed_store: Path) -> None:
    for number, zeros in enumerate((1, 7, 4_096, 3 * BLOCK)):
        store = copy_store(killed_store, tmp_path / str(number))
        with log_of(store).open("ab") as log:
            log.write(bytes(zeros))
        assert read_all(store) == [payload(number) for number in range(MESSAGES)]


def test_what_is_enqueued_after_a_torn_tail_is_there_after_the_next_opening(tmp_path: Path, killed_store: Path) -> None:
    store = copy_store(killed_store, tmp_path / "store")
    cut(log_of(store), log_of(store).stat().st_size - 5)
    with open_store(store) as hf:
        hf.queue("mail").enqueue(payload(MESSAGES - 1))
    assert read_all(store) == [payload(number) for number in range(MESSAGES)]


def test_a_payload_that_holds_a_log_is_not_taken_for_records(tmp_path: Path, killed_store: Path) -> None:
    """Torn within such a payload, whole records with right checksums stand behind the tear; they are not ours."""
    foreign = log_of(killed_store).read_bytes()
    store = kill_format_one(tmp_path, [b"a", b"b", b"c", foreign])
    raw = log_of(store).read_bytes()
    assert damage_of(raw, tmp_path) is None
    last, _ = records_of(log_of(store))[-1]
    for size in range(last + 100, len(raw), 293):
        assert damage_of(raw[:size], tmp_path) is None, f"cut to {size}"


# --- Several logs ----------------------------------------------------------------------------------------------------


def split(store: Path, at: int, missing: int = 0) -> Path:
    """Split the log into two there, and remove the last bytes of the first."""
    log = log_of(store)
    raw = log.read_bytes()
    log.write_bytes(raw[: at - missing])
    (log.parent / f"{int(log.stem) + 90:06}.log").write_bytes(raw[at:])
    return store


def test_logs_are_one_after_the_other(tmp_path: Path, killed_store: Path) -> None:
    at, _ = records_of(log_of(killed_store))[-10]
    store = split(copy_store(killed_store, tmp_path / "store"), at)
    assert read_all(store) == [payload(number) for number in range(MESSAGES)]


def test_an_incomplete_record_at_the_end_of_any_log_but_the_last_stops_the_opening(
    tmp_path: Path, killed_store: Path
) -> None:
    """RocksDB itself cuts it, and goes on with the next log."""
    at, length = records_of(log_of(killed_store))[-10]
    for missing in (1, 5, length - 3):
        store = split(copy_store(killed_store, tmp_path / str(missing)), at, missing)
        assert "later log goes on" in check_refused(store).message


def test_to_cut_a_log_and_move_the_later_ones_away_opens_what_stands_before(tmp_path: Path, killed_store: Path) -> None:
    records = records_of(log_of(killed_store))
    store = split(copy_store(killed_store, tmp_path / "store"), records[-10][0])
    first, second = sorted((store / "db").glob("*.log"))
    flip(first, records[-20][0] + 6, bits=4)
    error = check_refused(store)
    assert f"truncate -s {records[-20][0]} {first}` and move {second.name} away" in error.message
    cut(first, records[-20][0])
    second.unlink()
    assert read_all(store) == [payload(number) for number in range(MESSAGES - 20)]


def test_an_empty_log_behind_a_torn_one_is_what_a_kill_while_opening_leaves(tmp_path: Path, killed_store: Path) -> None:
    store = copy_store(killed_store, tmp_path / "store")
    size = log_of(store).stat().st_size
    cut(log_of(store), size - 5)
    (store / "db" / "000099.log").touch()
    assert read_all(store) == [payload(number) for number in range(MESSAGES - 1)]


# --- Time ------------------------------------------------------------------------------------------------------------


def test_of_a_long_log_the_headers_are_read_and_the_checksums_of_its_last_block_alone(tmp_path: Path) -> None:
    """RocksDB checks the other checksums when it replays the records. Here none is right."""
    raw = bytearray()
    while len(raw) < (9 << 20) + 5_000:
        left = BLOCK - len(raw) % BLOCK
        length = min(500, left - 7)
        raw += struct.pack("<IHB", 0, length, 1) + bytes(length) if left >= 7 else bytes(left)
    damage = damage_of(raw, tmp_path)
    assert damage is not None
    assert damage.at == len(raw) // BLOCK * BLOCK
    every = find_damage(tmp_path, verifies_all=True)
    assert every is not None
    assert every.at == 0


# --- After the upgrade -----------------------------------------------------------------------------------------------


def test_a_killed_store_of_format_1_has_every_message_and_the_current_format_after_an_opening(
    tmp_path: Path, killed_store: Path
) -> None:
    store = copy_store(killed_store, tmp_path / "store")
    assert read_marker(store).format == 1
    with open_store(store) as hf:
        assert read_marker(store).format == WHOLE_STORE.format
        hf.queue("mail").enqueue(payload(MESSAGES))
        killed = copy_store(store, tmp_path / "killed again")
    for each in (store, killed):
        assert read_all(each) == [payload(number) for number in range(MESSAGES + 1)]


def test_an_upgrade_that_is_killed_before_the_marker_is_written_is_carried_out_again(
    tmp_path: Path, killed_store: Path
) -> None:
    store = copy_store(killed_store, tmp_path / "store")
    marker = (store / "HOLDFAST").read_bytes()
    with open_store(store):
        killed = copy_store(store, tmp_path / "killed")
    # The session has written its first commit since, which never comes before the marker.
    take_all_frames(killed)
    (killed / "HOLDFAST").write_bytes(marker)
    assert read_all(killed) == [payload(number) for number in range(MESSAGES)]


def test_segments_are_freed_once_a_checkpoint_is_flushed_though_some_families_are_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "SEGMENT_BYTES", 64 << 10)
    store = tmp_path / "store"
    with open_store(store, checkpoint_bytes=64 << 10) as hf:
        queue = hf.queue("mail")
        queue.enqueue(b"a")
        queue.claim(1)  # the only key of the leases, far too little to be flushed for its own sake
        enqueued = 0
        while enqueued < 5_000 and list_segments(store / LOG)[0] < 20:
            queue.enqueue(bytes(500))
            enqueued += 1
        left = list_segments(store / LOG)
        assert left[0] >= 20, f"after {enqueued} messages the segments are {left}"
        killed = copy_store(store, tmp_path / "killed")
    with open_store(killed) as hf:
        stats = hf.queue("mail").stats()
        assert (stats.ready, stats.in_flight) == (enqueued, 1)
