"""Opening a directory: everything that can be wrong with it gives a named error that says what to do, and changes
nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

import holdfast
from holdfast.clock import steady_s
from holdfast.model.errors import HoldfastError, InvalidArgument, StoreUnavailable
from holdfast.stores.rocks.engine import database
from holdfast.stores.rocks.engine.checkpoints import CHECKPOINT_BYTES
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.recovery import opening
from holdfast.stores.rocks.recovery.marker import FORMAT
from holdfast.testing import ManualClock
from tests.crash.rocks import contents, copy_store, open_store, verify_store
from tests.small_disk import mounted
from tests.stores.rocks.damage import MESSAGES, cut, flip, payload, read_all

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30

# Opens the store, says so, and keeps it until its input ends.
KEEPER = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as hf:
    hf.queue("mail").enqueue(b"of the other process")
    print("open", flush=True)
    sys.stdin.read()
"""


def fill(path: Path) -> None:
    with open_store(path, low_disk_bytes=0) as hf:
        for number in range(MESSAGES):
            hf.queue("mail").enqueue(payload(number))


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was closed properly, with its messages in sorted files."""
    path = tmp_path_factory.mktemp("closed") / "store"
    fill(path)
    return path


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that has tmp_path/store open."""
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(tmp_path / "store")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        if process.poll() is None:
            process.kill()


# --- Not a store -----------------------------------------------------------------------------------------------------


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    before = contents(tmp_path)
    with pytest.raises(InvalidArgument, match="is not a store and not empty: give") as raised:
        open_store(tmp_path)
    assert str(tmp_path) in str(raised.value)
    assert contents(tmp_path) == before


def test_a_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("dear")
    with pytest.raises(InvalidArgument, match="is a file: give a directory"):
        open_store(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "dear"


def test_a_path_below_a_file_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("dear")
    with pytest.raises(HoldfastError):
        open_store(tmp_path / "file" / "store")


def test_an_empty_directory_and_a_missing_one_become_stores(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "new" / "below"):
        with open_store(path) as hf:
            assert hf.queue("mail").enqueue(b"a")


def test_a_store_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path, closed_store: Path) -> None:
    store = copy_store(closed_store, tmp_path / "store")
    marker = store / "HOLDFAST"
    newer = FORMAT + 1
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "format": newer}))
    before = contents(store)
    with pytest.raises(StoreUnavailable, match=f"format {newer}, this version reads up to {FORMAT}: upgrade Holdfast"):
        open_store(store)
    assert contents(store) == before


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "x"}', b'{"format": null}', b'{"pid": 1}']
)
def test_a_damaged_marker_is_refused_and_left_alone(tmp_path: Path, closed_store: Path, damage: bytes) -> None:
    store = copy_store(closed_store, tmp_path / "store")
    (store / "HOLDFAST").write_bytes(damage)
    before = contents(store)
    with pytest.raises(StoreUnavailable, match="HOLDFAST is damaged: restore"):
        open_store(store)
    assert contents(store) == before


# --- In use ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("4.6")
def test_a_store_in_use_by_another_process_names_its_process_id_and_what_to_do(
    tmp_path: Path, keeper: subprocess.Popen[str]
) -> None:
    store = tmp_path / "store"
    before = contents(store)
    with pytest.raises(StoreUnavailable, match=f"in use by process {keeper.pid}") as raised:
        holdfast.open(str(store))
    assert "serve" in str(raised.value)
    assert raised.value.facts["pid"] == keeper.pid
    assert contents(store) == before
    keeper.communicate(timeout=PATIENCE_S)  # the end of its input ends it
    with holdfast.open(str(store)) as hf:
        assert hf.queue("mail").stats().ready == 1


def test_a_store_whose_owner_was_killed_opens_at_once(tmp_path: Path, keeper: subprocess.Popen[str]) -> None:
    keeper.kill()
    keeper.wait(PATIENCE_S)
    with holdfast.open(str(tmp_path / "store")) as hf:
        assert hf.queue("mail").stats().ready == 1


@pytest.mark.spec("4.6")
def test_a_store_in_use_by_this_process_is_refused_too(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as hf:
        with pytest.raises(StoreUnavailable, match=f"in use by process {os.getpid()}"):
            open_store(tmp_path / "store")
        assert hf.queue("mail").enqueue(b"still works")


@pytest.mark.spec("4.6")
def test_closing_lets_the_same_process_open_again_at_once(tmp_path: Path) -> None:
    """The program still holds the closed queue, messages and errors."""
    held: list[object] = []
    for number in range(3):
        hf = open_store(tmp_path / "store")
        queue = hf.queue("mail")
        queue.enqueue(b"a", group="g")
        queue.enqueue(b"b", key=f"k{number}", delay="1h")
        held += [hf, queue, *queue.claim(1)]
        hf.close()
        with pytest.raises(StoreUnavailable, match="closed") as raised:
            queue.enqueue(b"c")
        held.append(raised)


async def test_closing_on_a_loop_lets_the_same_process_open_again_at_once(tmp_path: Path) -> None:
    held: list[object] = []
    for _ in range(3):
        async with holdfast.open_async(str(tmp_path / "store")) as hf:
            await hf.queue("mail").enqueue(b"a")
            held += [hf, *await hf.queue("mail").claim(1)]


def test_a_closed_store_has_no_owner(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    assert str(os.getpid()) not in (tmp_path / "store" / "HOLDFAST").read_text()


def test_a_closing_that_does_not_end_is_left_by_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recovered = Event()
    monkeypatch.setattr(database, "_try_to_close", lambda parts, failures: recovered.wait(PATIENCE_S))
    opened = Database(tmp_path / "store")
    with pytest.raises(StoreUnavailable, match="restart the program"):
        opened.close_stopped(within_s=0.01)
    with pytest.raises(StoreUnavailable, match=rf"in use by process {os.getpid()}"):
        Database(tmp_path / "store")
    recovered.set()


# --- Killed while it was made ----------------------------------------------------------------------------------------

EXIT_AFTER_DATABASE = """
import os, sys, holdfast
from holdfast.stores.rocks.recovery import opening
make = opening.Rdict
def stop(*arguments, **named):
    make(*arguments, **named)
    os._exit(9)
opening.Rdict = stop
holdfast.open(sys.argv[1])
"""

EXIT_BEFORE_RENAME = """
import os, pathlib, sys, holdfast
count = 0
def stop(*arguments):
    os._exit(9)
pathlib.Path.replace = pathlib.Path.rename = os.replace = os.rename = stop
holdfast.open(sys.argv[1])
"""


@pytest.mark.parametrize("script", [EXIT_AFTER_DATABASE, EXIT_BEFORE_RENAME], ids=["after database", "before rename"])
def test_a_store_whose_first_opening_was_killed_opens(tmp_path: Path, script: str) -> None:
    store = tmp_path / "store"
    killed = subprocess.run([sys.executable, "-c", script, str(store)], cwd=ROOT, timeout=PATIENCE_S, check=False)
    assert killed.returncode == 9
    with open_store(store) as hf:
        hf.queue("mail").enqueue(b"a")


# --- Damaged files ---------------------------------------------------------------------------------------------------


def check_damage_is_named(store: Path) -> None:
    """The opening or a read reports the damage. If neither does, no data is missing or wrong."""
    said = "nothing: restore"
    try:
        assert read_all(store) == [payload(number) for number in range(MESSAGES)]
    except StoreUnavailable as error:
        said = error.message
    assert "in use" not in said
    assert "restore" in said


PLACES = [0.02, 0.3, 0.6, 0.75, 0.9, 0.98]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_byte_in_a_sorted_file_is_a_named_error(tmp_path: Path, closed_store: Path, place: float) -> None:
    for number, file in enumerate(sorted((closed_store / "db").glob("*.sst"))):
        store = copy_store(closed_store, tmp_path / str(number))
        flip(store / "db" / file.name, int(file.stat().st_size * place))
        check_damage_is_named(store)


@pytest.mark.slow
def test_a_short_or_missing_sorted_file_is_a_named_error(tmp_path: Path, closed_store: Path) -> None:
    for number, file in enumerate(sorted((closed_store / "db").glob("*.sst"))):
        store = copy_store(closed_store, tmp_path / f"short {number}")
        cut(store / "db" / file.name, file.stat().st_size // 2)
        with pytest.raises(StoreUnavailable, match="restore"):
            read_all(store)
        store = copy_store(closed_store, tmp_path / f"missing {number}")
        (store / "db" / file.name).unlink()
        with pytest.raises(StoreUnavailable, match="restore"):
            read_all(store)


@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT"])
def test_a_damaged_manifest_is_a_named_error(tmp_path: Path, closed_store: Path, name: str) -> None:
    [file] = (closed_store / "db").glob(name)
    for number, place in enumerate([0.1, 0.5, 0.95]):
        store = copy_store(closed_store, tmp_path / f"flip {number}")
        flip(store / "db" / file.name, int(file.stat().st_size * place))
        with pytest.raises(StoreUnavailable, match="restore"):
            open_store(store)
    store = copy_store(closed_store, tmp_path / "short")
    cut(store / "db" / file.name, file.stat().st_size // 2)
    with pytest.raises(StoreUnavailable, match="restore"):
        open_store(store)
    store = copy_store(closed_store, tmp_path / "missing")
    (store / "db" / file.name).unlink()
    with pytest.raises(StoreUnavailable, match="restore"):
        open_store(store)


def test_a_damaged_store_in_a_directory_named_lock_is_not_in_use(tmp_path: Path, closed_store: Path) -> None:
    store = copy_store(closed_store, tmp_path / "clock")
    flip(store / "db" / "CURRENT", 3)
    with pytest.raises(StoreUnavailable) as raised:
        open_store(store)
    assert "in use" not in raised.value.message


def test_a_store_that_could_not_be_opened_opens_once_it_is_mended(tmp_path: Path, closed_store: Path) -> None:
    """A failed opening keeps no lock, even while the program keeps a reference to its error."""
    errors = []
    for file in sorted((closed_store / "db").glob("*.sst")):
        store = copy_store(closed_store, tmp_path / file.stem)
        flip(store / "db" / file.name, 3)
        try:
            read_all(store)
        except HoldfastError as error:
            errors.append(error)
        flip(store / "db" / file.name, 3)
        assert len(read_all(store)) == MESSAGES
    assert errors


# --- A full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 48 << 20) as place:
        yield place


@pytest.mark.spec("4.8")
def test_with_the_disk_nearly_full_enqueue_is_refused_and_claim_and_ack_continue(small_disk: Path) -> None:
    clock = ManualClock()
    with open_store(small_disk / "store", clock, durability="fsync", low_disk_bytes=16 << 20) as hf:
        queue = hf.queue("mail")
        queue.enqueue([b"a", b"b", b"c"])
        (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - (8 << 20)))
        clock.advance(1_000)
        with pytest.raises(StoreUnavailable, match="free some space"):
            queue.enqueue(b"d")
        [first, second, third] = queue.claim(3)
        first.ack()
        second.extend("1m")
        third.nack("failed", final=True)
        assert (queue.stats().in_flight, queue.stats().failed) == (1, 1)
        (small_disk / "filler").unlink()
        clock.advance(1_000)
        assert queue.enqueue(b"e")
        assert [message.payload for message in queue.claim(10)] == [b"e"]


def test_a_full_disk_stops_the_store_and_nothing_that_was_answered_is_lost(small_disk: Path) -> None:
    hf = open_store(small_disk / "store", durability="fsync", low_disk_bytes=0)
    queue = hf.queue("mail")
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - (12 << 20)))
    answered: list[str] = []
    with suppress(StoreUnavailable):
        for _ in range(100):
            answered += queue.enqueue(os.urandom(1 << 20))
    assert 3 <= len(answered) < 100
    for call in (queue.stats, lambda: queue.claim(1), lambda: queue.enqueue(b"a")):
        with pytest.raises(StoreUnavailable, match=r"has stopped: .*No space left"):
            call()
    with suppress(StoreUnavailable):
        hf.close()
    (small_disk / "filler").unlink()
    with open_store(small_disk / "store") as reopened:
        found = {info.id for info in reopened.queue("mail").list(limit=1_000)}
    # The one that failed may be there or not.
    assert set(answered) <= found
    assert len(found) <= len(answered) + 1


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("checkpoint_bytes", [CHECKPOINT_BYTES, 1 << 20], ids=["in the log", "in a flush"])
def test_a_store_that_a_full_disk_stopped_reopens_by_itself_once_there_is_room(
    small_disk: Path, durability: str, checkpoint_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small checkpoints the disk may fill up during a flush, from which RocksDB tries to recover by itself."""
    if checkpoint_bytes < CHECKPOINT_BYTES:
        monkeypatch.setattr(opening, "_WRITE_BUFFER", 64 << 10)
        monkeypatch.setattr(opening, "_WRITE_BUFFERS", 40)
    clock, filler = ManualClock(), small_disk / "filler"
    options = {"durability": durability, "low_disk_bytes": 0, "checkpoint_bytes": checkpoint_bytes}
    with open_store(small_disk / "store", clock, **options) as hf:
        queue = hf.queue("mail")
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - (6 << 20)))
        answered: list[str] = []
        with suppress(StoreUnavailable):
            for _ in range(2_000):
                answered += queue.enqueue(os.urandom(64 << 10))
        with pytest.raises(StoreUnavailable, match="reopens by itself"):
            queue.stats()
        filler.unlink()
        ends_s = steady_s() + 2 * PATIENCE_S
        found: set[str] = set()
        while not found:
            clock.advance(60_000)
            with suppress(StoreUnavailable):
                found = {info.id for info in queue.list(limit=1_000)}
            assert steady_s() < ends_s, "the store was not reopened"
            Event().wait(0.05)
        assert set(answered) <= found
        assert len(found) <= len(answered) + 1
        assert queue.enqueue(b"after")
    verify_store(small_disk / "store", "after a full disk")


def test_a_disk_without_any_space_is_a_named_error_at_the_opening(small_disk: Path) -> None:
    fill(small_disk / "store")
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises(StoreUnavailable, match="disk is full"):
        open_store(small_disk / "store")
    (small_disk / "filler").unlink()
    assert len(read_all(small_disk / "store")) == MESSAGES
