"""`holdfast db migrate DIR`: nothing is lost because it could not be read, and looking changes nothing."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.stores.rocks.verify.store_check import verify
from tests.cli.conftest import Ran
from tests.listing import listing_of
from tests.machinery.legacy.databases import LegacyWriter, make_legacy

Run = Callable[..., Ran]


def now_s() -> int:
    return SystemClock().now_ms() // 1_000


def make_partly_unreadable(path: Path, *, readable: int) -> dict[bytes, bytes]:
    """Messages, and beside them three keys that cannot be read; these are returned."""
    writer = LegacyWriter(path)
    for n in range(readable):
        writer.add(b"id%d" % n, b"payload", now_s())
    unreadable = {b"available/cut": b"\0\0\0", b"in_progress/odd\xff": b"not a message", b"jobs/1": b"of no known kind"}
    for key, value in unreadable.items():
        writer.put(key, value)
    writer.close()
    return unreadable


@pytest.mark.parametrize("readable", [0, 5])
def test_a_directory_with_unreadable_values_is_not_switched(alone: None, run: Run, readable: int) -> None:
    path = Path("old")
    make_partly_unreadable(path, readable=readable)
    before = listing_of(path)

    for _ in range(2):
        ran = run("db", "migrate", path)
        assert (ran.code, ran.out) == (4, "")
        assert f"3 keys or values cannot be read, and {readable} messages can" in ran.err
        assert "available/cut (it is too short to be a message)" in ran.err
        assert r"in_progress/odd\xff" in ran.err
        assert "jobs/1" in ran.err
        assert "give --accept-unreadable 3" in ran.err
    assert listing_of(path) == before


def test_only_the_exact_number_of_unreadable_values_is_accepted(alone: None, run: Run) -> None:
    path = Path("old")
    unreadable = make_partly_unreadable(path, readable=5)
    before = listing_of(path)
    for wrong in (1, 2, 4):
        ran = run("db", "migrate", path, "--accept-unreadable", wrong)
        assert (ran.code, f"--accept-unreadable {wrong} is a different number" in ran.err) == (4, True), ran
    assert listing_of(path) == before

    ran = run("db", "migrate", path, "--accept-unreadable", 3)

    assert (ran.code, "5 messages in default/default" in ran.out) == (0, True), ran
    assert "legacy-unreadable.jsonl" in ran.out
    lines = [json.loads(line) for line in (path / "legacy-unreadable.jsonl").read_text().splitlines()]
    kept = {base64.b64decode(each["key_base64"]): base64.b64decode(each["value_base64"]) for each in lines}
    assert kept == unreadable
    assert verify(path, None).messages == 5


def test_a_number_that_accepts_more_than_is_there_is_refused(alone: None, run: Run) -> None:
    make_legacy(Path("old"), 10, seed=1, now_s=now_s(), is_damaged=False)

    ran = run("db", "migrate", "old", "--accept-unreadable", 1)

    assert (ran.code, "Leave out --accept-unreadable" in ran.err) == (4, True), ran
    assert run("db", "migrate", "old").code == 0
    assert run("db", "migrate", "--store", "postgres://x", "--accept-unreadable", 1).code == 2


def test_an_accepted_migration_that_was_interrupted_continues(alone: None, run: Run) -> None:
    """The number is named again, as long as the copy is not finished."""
    path = Path("old")
    make_partly_unreadable(path, readable=5)
    (path / "holdfast-new").mkdir()  # as a kill in the first moment leaves it

    assert run("db", "migrate", path).code == 4
    assert run("db", "migrate", path, "--accept-unreadable", 3).code == 0
    assert verify(path, None).messages == 5


def test_no_command_that_looks_writes_into_the_directory(alone: None, run: Run) -> None:
    path = Path("old")
    make_partly_unreadable(path, readable=40)
    (path / "rocksdict-config.json").unlink()  # of the library that wrote the fixture; the old program had none
    before = listing_of(path)

    for code, *command in (
        (0, "stats", "--url", path),
        (0, "queues", "--url", path),
        (0, "peek", "default", "--url", path),
        (0, "pipeline", "migrate", "--url", path, "--dry-run"),
        (4, "verify", path),
        (4, "db", "migrate", path),
        (2, "db", "status", "--store", path),
        (0, "doctor", "--url", path),
    ):
        ran = run(*command)
        assert ran.code == code, (command, ran)
        assert listing_of(path) == before, command


def test_a_command_that_changes_something_uses_the_directory_and_begins_to_move_its_messages(
    alone: None, run: Run
) -> None:
    path = Path("old")
    make_legacy(path, 6_000, seed=1, now_s=SystemClock().now_ms() // 1_000, is_damaged=False)

    assert run("enqueue", "default", "x", "--url", path).code == 0
    assert (path / "HOLDFAST").exists()
    stats = run("stats", "default", "--url", path, "--json").json
    assert stats["ready"] + stats["delayed"] + stats["in_flight"] == 6_001
    assert stats["legacy_left"] > 0
    assert "legacy left" in run("queues", "--url", path).out
    assert "are still to be moved from the legacy layout" in run("doctor", "--url", path).out
    assert "to be moved from the legacy layout" in run("verify", path).out
    assert "migrated old" in run("db", "migrate", path).out
    assert "legacy_left" not in run("stats", "default", "--url", path, "--json").json
    assert run("verify", path).code == 0


def test_a_look_says_how_much_it_cannot_show(alone: None, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    make_partly_unreadable(Path("old"), readable=5)

    assert run("stats", "--url", "old", "--json").json["ready"] == 5
    assert "old number=3: " in caplog.text


def test_verify_says_that_a_directory_is_of_the_legacy_layout(alone: None, run: Run) -> None:
    make_legacy(Path("old"), 5, seed=1, now_s=now_s())

    assert "holdfast db migrate old" in run("verify", "old").err


def test_the_shell_is_told_how_many_are_in_flight_now(alone: None, run: Run) -> None:
    writer = LegacyWriter(Path("old"))
    writer.claim(b"lease", {b"held": b"x"}, now_s() + 3_600)
    writer.claim(b"ended", {b"free": b"y", b"free too": b"z"}, now_s() - 3_600)
    writer.close()

    ran = run("stats", "default", "--url", "old", "--json")

    assert (ran.json["ready"], ran.json["in_flight"]) == (2, 1)
    with holdfast.open("old") as hf:
        assert [message.payload for message in hf.queue().peek(5)] == [b"y", b"z"]
