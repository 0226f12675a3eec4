"""The violations that `verify` finds in a journal, and its report of a whole store."""

from pathlib import Path

import msgspec
import pytest

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.ids import to_bytes
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.verify import journal_check
from holdfast.stores.rocks.verify.store_check import verify
from tests.stores.rocks.made_store import (
    GROUPED,
    IX,
    JOBS,
    JR,
    LE,
    LI,
    VI,
    Damager,
    M,
    Made,
    copy_made,
    damaged,
    make_healthy,
    str_of,
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_healthy(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def made(healthy: Made, tmp_path: Path) -> Made:
    return copy_made(healthy, tmp_path / "store")


# --- The journal -----------------------------------------------------------------------------------------------


def test_a_gap_in_the_journal_is_named(made: Made) -> None:
    def damage(damager: Damager) -> None:
        damager.delete(JR, damager.keys(JR, b"\0")[3])

    assert any("the journal has a gap" in each for each in damaged(made, damage))


def test_a_block_of_the_journal_that_lost_an_event_is_named(made: Made) -> None:
    def damage(damager: Damager) -> None:
        key, rows = damager.first_block()
        damager.put(JR, key, msgspec.msgpack.encode([*rows, rows[-1]]))

    assert any("the journal has an overlap" in each for each in damaged(made, damage))


def test_a_damaged_block_of_the_journal_is_named(made: Made) -> None:
    violations = damaged(made, lambda damager: damager.put(JR, damager.first_block()[0], b"\xc1"))

    assert any("the journal's block at 1 is damaged" in each for each in violations)


@pytest.mark.parametrize(
    ("column", "value", "said"), [(0, keys.prefix(9, 9), "is of an unknown queue"), (2, 99, "is of an unknown kind")]
)
def test_an_event_of_no_known_queue_or_kind_is_named(made: Made, column: int, value: object, said: str) -> None:
    def damage(damager: Damager) -> None:
        key, [row, *rest] = damager.first_block()
        row[column] = value
        damager.put(JR, key, msgspec.msgpack.encode([row, *rest]))

    assert any(f"the journal's event 1 {said}" in each for each in damaged(made, damage))


def _forget_message(damager: Damager, name: str) -> None:
    """Delete every key of a message of `jobs`, but not its events."""
    spaces = [(family, JOBS) for family in (M, VI, LI, LE)]
    spaces += [(IX, space) for space in (*keys.PER_QUEUE_SPACES, keys.TTLS, keys.KEPT)]
    for family, space in spaces:
        for key in damager.keys(family, space):
            if damager.ids[name] in key:
                damager.delete(family, key)


@pytest.mark.parametrize(("name", "event"), [("ready", "enqueued"), ("in flight", "extended"), ("failed", "failed")])
def test_a_message_that_the_journal_has_and_the_store_lost_is_named(made: Made, name: str, event: str) -> None:
    violations = damaged(made, lambda damager: _forget_message(damager, name))

    said = f"its last event in the journal is {event}, but it does not exist [message-lost]"
    assert f"acme/jobs {str_of(made.ids[name])}: {said}" in violations


@pytest.mark.parametrize("name", ["removed", "idle 0"])
def test_a_message_that_came_back_after_its_end_is_named(made: Made, name: str) -> None:
    p, queue, event = (JOBS, "acme/jobs", "removed") if name == "removed" else (GROUPED, "acme/grouped", "succeeded")

    violations = damaged(made, lambda d: d.put(M, p + d.ids[name], d.get(M, JOBS + d.ids["urgent"])))

    said = f"its last event in the journal is {event}, but it is ready [journal-state]"
    assert f"{queue} {str_of(made.ids[name])}: {said}" in violations


def test_a_version_that_the_journal_does_not_know_is_named(made: Made) -> None:
    violations = damaged(made, lambda d: d.change_life(LE, JOBS + d.ids["in flight"], version=9))

    said = "its last event in the journal is of version 1, but it has version 9 [journal-version]"
    assert f"acme/jobs {str_of(made.ids['in flight'])}: {said}" in violations


def test_a_message_that_never_was_in_the_journal_is_named(made: Made) -> None:
    # The same millisecond and node, a sequence that was not reached.
    stranger = to_bytes(keys.parse_id(made.ids["urgent"]) + 3_000)

    violations = damaged(made, lambda d: d.put(M, JOBS + stranger, d.get(M, JOBS + d.ids["urgent"])))

    said = f"acme/jobs {str_of(stranger)}: is not in the journal, which has earlier messages [journal-missing]"
    assert said in violations


def test_a_message_in_another_queue_than_its_last_event_is_named(made: Made) -> None:
    violations = damaged(made, lambda d: d.put(M, GROUPED + d.ids["ready"], d.get(M, JOBS + d.ids["ready"])))

    said = "its last event in the journal is of queue acme/jobs [message-misplaced]"
    assert f"acme/grouped {str_of(made.ids['ready'])}: {said}" in violations


def test_a_long_journal_is_read_in_shares_with_the_same_result(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_check, "_EVENTS_PER_PASS", 10)

    assert verify(made.path).is_clean
    assert any("it does not exist" in each for each in damaged(made, lambda d: _forget_message(d, "ready")))


def test_messages_from_before_the_journals_beginning_need_no_event(made: Made) -> None:
    def trim(damager: Damager) -> None:
        for key in damager.keys(JR, b"\0")[:-2]:
            damager.delete(JR, key)

    assert damaged(made, trim) == []


# --- The whole -------------------------------------------------------------------------------------------------


@pytest.mark.spec("4.8")
def test_a_store_used_in_every_way_verifies_clean(healthy: Made) -> None:
    steps: list[tuple[str, int, int]] = []

    report = verify(healthy.path, lambda what, done, total: steps.append((what, done, total)))

    assert [str(each) for each in report.violations] == []
    assert report.is_clean
    assert (report.tenants, report.queues, report.messages) == (2, 3, 24)
    assert (report.ready, report.delayed, report.in_flight, report.failed, report.succeeded) == (17, 3, 4, 2, 1)
    assert report.events == 65
    assert steps[-1][0] == "journal"
    assert ("messages", 24, 24) in steps


def test_verifying_changes_nothing(made: Made) -> None:
    first = verify(made.path)

    assert verify(made.path) == first


def test_of_very_many_violations_some_are_listed_and_all_are_counted(made: Made) -> None:
    damager = Damager(made)
    for number in range(1, 301):
        damager.put(LE, JOBS + to_bytes(number), b"")
    damager.close()

    report = verify(made.path)

    assert (report.violation_count, len(report.violations)) == (300, 200)


def test_what_is_no_store_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no store"):
        verify(tmp_path / "nothing")
    with pytest.raises(InvalidArgument, match="holds no store"):
        verify(tmp_path)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="is not a store"):
        verify(tmp_path)

    assert [each.name for each in tmp_path.iterdir()] == ["note.txt"]


def test_a_store_in_use_is_refused_with_its_owner_and_what_to_do(made: Made) -> None:
    database = Database(made.path)
    try:
        with pytest.raises(StoreUnavailable, match="holdfast backup") as refused:
            verify(made.path)
    finally:
        database.close()

    assert "pid" in refused.value.facts


def test_a_damaged_file_ends_one_check_and_is_named(made: Made) -> None:
    database = Database(made.path)
    database.close()
    tables = sorted((made.path / "db").glob("*.sst"), key=lambda each: each.stat().st_size)
    raw = bytearray(tables[-1].read_bytes())
    raw[1_000] ^= 0xFF
    tables[-1].write_bytes(raw)

    report = verify(made.path)

    assert any("cannot be read to the end" in str(each) for each in report.violations), report.violations
