"""One model feeds the table and the JSON."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

import holdfast
from holdfast.cli import output as show
from holdfast.cli.main import app

Run = Callable[..., Any]

# What answers nothing that a program would read: their work is what they do.
WITHOUT_JSON = {"serve", "worker"}

LISTS = [
    ("queues",),
    ("tenants",),
    ("peek", "jobs"),
    ("dlq", "jobs"),
    ("schedule", "jobs"),
    ("top", "--once", "--interval", "0.1"),
    ("doctor",),
    ("bench", "--messages", "20", "--singles", "2", "--url", "memory://"),
]
RECORDS = [
    ("stats",),
    ("stats", "jobs"),
    ("policy", "jobs"),
    ("tenants", "default"),
    ("get", "jobs", "ID"),
    ("schedule", "jobs", "nightly"),
]


@pytest.fixture
def id(store: str) -> str:
    with holdfast.open(store) as hf:
        queue = hf.queue("jobs")
        [failing] = queue.enqueue({"n": 1}, max_retries=0)
        queue.claim()[0].nack("why not")
        queue.enqueue({"n": 2}, headers={"a": "b"})
        queue.schedule("nightly", cron="0 3 * * *", payload=b"x")
    return str(failing)


@pytest.mark.spec("10.4")
def test_every_command_that_answers_has_json() -> None:
    without = {
        name
        for name, command in every_command(typer.main.get_command(app))
        if not any("--json" in parameter.opts for parameter in command.params)
    }

    assert without == WITHOUT_JSON


def every_command(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """With those of the groups in it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_the_tables_columns_are_the_objects_keys(run: Run, id: str, arguments: tuple[str, ...]) -> None:
    table = run(*arguments)
    objects = run(*arguments, "--json").lines

    assert table.code == 0, table
    headings = re.split(r"\s{2,}", table.out.splitlines()[0].strip())
    assert objects
    for each in objects:
        assert headings == [show.heading(key) for key in each]
    assert len(table.out.splitlines()) == 1 + len(objects)


@pytest.mark.parametrize("arguments", RECORDS, ids=" ".join)
def test_the_lines_of_a_record_are_the_objects_keys(run: Run, id: str, arguments: tuple[str, ...]) -> None:
    filled = [id if each == "ID" else each for each in arguments]
    lines = run(*filled).out.splitlines()
    answer = run(*filled, "--json").json

    assert [re.split(r"\s{2,}", line)[0] for line in lines] == [show.heading(key) for key in answer]


def test_an_empty_list_says_so_beside_the_answer(run: Run, store: str) -> None:
    ran = run("queues")

    assert (ran.code, ran.out, ran.err) == (0, "", "tenant default has no queues\n")
    assert run("queues", "--json").out == ""


def test_journal_events_have_every_field_of_the_api(run: Run, id: str) -> None:
    event = run("tail", "--no-follow", "--event", "failed", "--json").json

    assert set(event) == {
        *("seq", "shard", "at", "event", "tenant", "queue", "id", "attempt", "version", "priority", "enqueued_at"),
        *("claimed_at", "bytes", "error", "reason", "correlation_id"),
    }
    assert event["id"] == id


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("lease_ms", 0, "0s"),
        ("lease_ms", 500, "500ms"),
        ("lease_ms", 90_000, "1.5m"),
        ("ttl_ms", 86_400_000, "1d"),
        ("bytes", 1_536, "1.5KiB"),
        ("ready", 12_345, "12,345"),
        ("paused", True, "yes"),
        ("group", None, "-"),
        ("headers", {"a": "1", "b": None}, "a=1"),
        ("last_error", "two\nlines\x1b[2J", "two lines\\x1b[2J"),
    ],
)
def test_values_are_shown_by_what_their_key_says(key: str, value: Any, text: str) -> None:
    assert show.format_value(key, value) == text
