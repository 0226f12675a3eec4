"""A store is copied while another process writes to it: the copy opens, verifies and has all acknowledged messages."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import holdfast
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.ids import parse_id
from holdfast.stores.rocks.offline import backup as backup_module
from holdfast.stores.rocks.offline.backup import backup
from holdfast.stores.rocks.verify.store_check import verify

ROOT = Path(__file__).parents[3]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[IO[str]]:
    """Yield the output of a process that writes to `tmp_path/store`."""
    program = [sys.executable, "-m", "tests.stores.rocks.backup_load", str(tmp_path / "store")]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def journal_of(path: Path) -> Iterator[int]:
    """Return the ids of all enqueues in a store's journal."""
    with holdfast.open(str(path)) as hf:
        position = None
        while events := hf.journal(position):
            yield from (event.snowflake for event in events if event.event == "enqueued")
            position = events.next


@pytest.mark.spec("4.8")
def test_a_copy_of_a_store_under_load_is_whole_and_has_all_that_was_answered(load: IO[str], tmp_path: Path) -> None:
    answered: list[int] = []
    for number in range(5):
        answered += [parse_id(load.readline().strip()) for _ in range(900)]

        copied = backup(tmp_path / "store", tmp_path / f"copy{number}")

        assert copied.files > 4
        report = verify(tmp_path / f"copy{number}")
        assert [str(each) for each in report.violations] == []
        assert report.events >= len(answered)
        assert set(answered) <= set(journal_of(tmp_path / f"copy{number}"))


@pytest.mark.spec("4.8")
def test_the_copied_store_continues_as_the_first_would_have(tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "store")) as hf:
        hf.queue("jobs").enqueue([b"one", b"two"], key=None)
        [held] = hf.queue("jobs").claim(lease=60)
        backup(tmp_path / "store", tmp_path / "copy")  # while it is open in this very process
        held.ack()

    with holdfast.open(str(tmp_path / "copy")) as copy:
        [other] = copy.queue("jobs").claim()
        other.ack()
        assert copy.queue("jobs").stats().in_flight == 1
        assert copy.queue("jobs").get(held.id).state == "in_flight"


def test_a_copy_waits_for_a_moment_in_which_no_file_comes_or_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(str(tmp_path / "store")) as hf:
        hf.queue("jobs").enqueue(b"one")
        sizes = iter(range(1_000))

        def restless(directory: Path) -> tuple[str, int]:
            return "MANIFEST-000005", next(sizes)

        monkeypatch.setattr(backup_module, "_manifest", restless)
        with pytest.raises(StoreUnavailable, match="try again"):
            backup(tmp_path / "store", tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


def test_half_a_copy_is_not_taken_for_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(str(tmp_path / "store")) as hf:
        hf.queue("jobs").enqueue(b"one")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreUnavailable, match="No space left on device; remove"):
            backup(tmp_path / "store", tmp_path / "copy")

    with pytest.raises(InvalidArgument, match="is not a store"):
        holdfast.open(str(tmp_path / "copy"))


def test_a_wrong_source_or_target_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "store")) as hf:
        hf.queue("jobs").enqueue(b"one")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")

    for source, target, said in (
        ("nothing", "copy", "holds no store"),
        ("full", "copy", "holds no store"),
        ("store", "full", "is not an empty directory"),
        ("store", "store/copy", "is inside the store"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            backup(tmp_path / source, tmp_path / target)

    assert sorted(each.name for each in tmp_path.iterdir()) == ["full", "store"]
