"""`holdfast list`: find a stuck message, and everything else, by state and filter."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.cli.output import relative
from tests.cli.conftest import assert_refused
from tests.cli.operator.test_operators import on_a_terminal

Run = Callable[..., Any]


class Furnished(NamedTuple):
    held: str
    held_by_other: str
    failed: str
    ready: str
    delayed: str
    receipt: str


@pytest.fixture
def jobs(request: pytest.FixtureRequest) -> Furnished:
    """A queue with a message in each state, in an embedded store unless the test says otherwise."""
    with holdfast.open(request.getfixturevalue(getattr(request, "param", "store"))) as hf:
        queue = hf.queue("jobs")
        [failing] = queue.enqueue({"n": 0}, max_retries=0, headers={"kind": "report"})
        queue.claim()[0].nack("timeout after 30 s")
        ids = queue.enqueue([{"n": 1}, {"n": 2}])
        [message] = queue.claim(lease=3_600, owner="worker-7")
        queue.claim(lease=3_600, owner="worker-8")
        [ready] = queue.enqueue({"n": 3}, priority=5)
        [delayed] = queue.enqueue({"n": 4}, delay=3_600)
        return Furnished(*ids, failing, ready, delayed, message.receipt)


def listed(run: Run, *arguments: object) -> list[str]:
    ran = run("list", "jobs", *arguments, "--json")
    assert ran.code == 0, ran
    return [each["id"] for each in ran.lines]


@pytest.mark.spec("10.8")
@pytest.mark.parametrize("jobs", ["store", "server"], indirect=True)
def test_messages_are_listed_by_state(run: Run, jobs: Furnished) -> None:
    assert listed(run, "--state", "in_flight") == [jobs.held, jobs.held_by_other]
    assert listed(run, "--state", "failed") == [jobs.failed]
    assert listed(run, "--state", "delayed") == [jobs.delayed]
    assert listed(run, "--state", "ready") == [jobs.ready, jobs.delayed]
    assert listed(run, "--state", "succeeded") == []
    assert listed(run, "--owner", "worker-7", "--held-for", "0") == [jobs.held]
    assert listed(run) == [jobs.failed, jobs.held, jobs.held_by_other, jobs.ready, jobs.delayed]


@pytest.mark.spec("10.8")
@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (("--owner", "worker-7"), ["held"]),
        (("--owner", "nobody"), []),
        (("--held-for", "0"), ["held", "held_by_other"]),
        (("--held-for", "1h"), []),
        (("--error-contains", "timeout"), ["failed"]),
        (("--older-than", "1h"), []),
        (("--header", "kind=report"), ["failed"]),
        (("--priority", "5"), ["ready"]),
        (("--priority", "100", "--state", "delayed"), ["delayed"]),
    ],
)
def test_filters_narrow_a_listing(run: Run, jobs: Furnished, filter: tuple[str, ...], expected: list[str]) -> None:
    assert listed(run, *filter) == [getattr(jobs, each) for each in expected]


def test_ids_narrow_a_listing(run: Run, jobs: Furnished) -> None:
    assert listed(run, "--id", jobs.ready, "--id", jobs.failed) == [jobs.failed, jobs.ready]


def test_a_listing_tells_who_holds_a_message_and_until_when_and_never_the_receipt(run: Run, jobs: Furnished) -> None:
    ran = run("list", "jobs", "--owner", "worker-7", "--json")
    table = run("list", "jobs", "--state", "in_flight")

    assert ran.json["owner"] == "worker-7"
    assert ran.json["lease_expires_at"] - ran.json["claimed_at"] == 3_600_000
    lines = table.out.splitlines()
    assert lines[0].split() == ["id", "state", "priority", "attempt", "age", "owner", "held", "lease", "error"]
    assert lines[1].split()[:4] == [jobs.held, "in_flight", "100", "1"]
    assert "worker-7" in lines[1]
    assert "expires in " in lines[1]
    assert jobs.receipt not in ran.out + table.out


def test_the_table_says_when_a_delayed_message_is_due(run: Run, jobs: Furnished) -> None:
    [heading, line] = run("list", "jobs", "--state", "delayed").out.splitlines()

    assert heading.split() == ["id", "state", "priority", "attempt", "age", "due", "error"]
    assert line.split()[:2] == [jobs.delayed, "delayed"]
    assert " in " in line


def test_a_listing_continues_after_its_cursor(run: Run, jobs: Furnished) -> None:
    first = run("list", "jobs", "--limit", 2, "--quiet")
    noted = run("list", "jobs", "--limit", 2, "--json")
    cursor = noted.err.partition("--cursor ")[2].split()[0]
    rest = run("list", "jobs", "--cursor", cursor, "--quiet")

    assert first.err == ""
    assert (first.out + rest.out).split() == [jobs.failed, jobs.held, jobs.held_by_other, jobs.ready, jobs.delayed]
    assert rest.err == ""


def test_all_lists_every_page(run: Run, store: str) -> None:
    with holdfast.open(store) as hf:
        ids = hf.queue("jobs").enqueue([b""] * 2_100)

    assert run("list", "jobs", "--all", "--quiet").out.split() == ids
    assert len(run("list", "jobs", "--quiet").out.split()) == 100
    ran = run("list", "jobs", "--limit", 1_500)
    assert sum(ran.out.count(id) for id in ids) == 1_500
    assert "--cursor" in ran.err


def test_an_empty_listing_says_so_and_a_missing_queue_is_exit_code_3(run: Run, store: str) -> None:
    with holdfast.open(store) as hf:
        hf.queue("jobs").set_policy()

    ran = run("list", "jobs", "--state", "failed")
    assert (ran.code, ran.out) == (0, "")
    assert "no matching messages" in ran.err
    assert_refused(run("list", "absent"), 3, "default/absent")
    assert_refused(run("list", "jobs", "--state", "stuck"), 2, "in_flight", "delayed")
    assert_refused(run("list", "jobs", "--held-for", "long"), 4, "--held-for")


def test_a_long_error_is_cut_to_the_terminal(run: Run, store: str) -> None:
    with holdfast.open(store) as hf:
        hf.queue("jobs").enqueue(b"", max_retries=0)
        hf.queue("jobs").claim()[0].nack("no room " * 100)

    code, shown = on_a_terminal(b"", "list", "jobs", "--state", "failed", HOLDFAST_URL=store, COLUMNS="100")

    assert code == 0
    assert shown.count("no room") in range(1, 8)
    assert "…" in shown
    assert run("list", "jobs").out.count("no room") == 100


@pytest.mark.parametrize(
    ("at_ms", "text"), [(12_000, "in 12s"), (1, "in 1ms"), (0, "0s ago"), (-3_000, "3s ago"), (-90_000, "1.5m ago")]
)
def test_times_are_told_from_now(at_ms: int, text: str) -> None:
    assert relative(1_000_000 + at_ms, 1_000_000) == text
