"""`holdfast schedule`: made, changed, paused, listed and removed from a shell."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import assert_refused

Run = Callable[..., Any]


@pytest.fixture(params=["store", "server"])
def anywhere(request: pytest.FixtureRequest) -> str:
    where: str = request.getfixturevalue(request.param)
    return where


@pytest.mark.usefixtures("anywhere")
def test_a_schedule_is_made_changed_paused_and_removed(run: Run) -> None:
    made = run(
        *("schedule", "acme/reports", "nightly", '{"kind": "daily"}', "--cron", "0 3 * * *"),
        *("--timezone", "Europe/Berlin", "--priority", 7, "-H", "a=1", "--json"),
    ).json
    assert (made["name"], made["cron"], made["timezone"]) == ("nightly", "0 3 * * *", "Europe/Berlin")
    assert (made["message"]["priority"], made["message"]["headers"]) == (7, {"a": "1"})
    assert made["next_at"] is not None

    changed = run("schedule", "acme/reports", "nightly", "--every", "15m", "--json").json
    assert (changed["cron"], changed["every_ms"], changed["message"]["priority"]) == (None, 900_000, 7)
    assert run("schedule", "acme/reports", "nightly", "--pause", "--json").json["paused"] is True
    assert run("schedule", "acme/reports", "nightly", "--resume", "--json").json["paused"] is False
    assert run("schedule", "acme/reports", "-q").out == "nightly\n"

    assert run("schedule", "acme/reports", "nightly", "--remove").code == 2, "it asks first"
    assert run("schedule", "acme/reports", "nightly", "--remove", "--yes").code == 0
    assert run("schedule", "acme/reports", "nightly").code == 3
    assert run("schedule", "acme/reports", "--json").out == ""


@pytest.mark.usefixtures("store")
def test_a_scheduled_payload_that_is_almost_json_is_refused(run: Run) -> None:
    made = ("schedule", "reports", "nightly", '{"kind": daily}', "--every", "1h")

    assert_refused(run(*made), 2, "line 1 column 10", "--text")
    assert run("schedule", "reports").code == 3
    assert run(*made, "--text", "--json").json["message"]["content_type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("nightly", "x", "--cron", "nonsense"), 4, "cron"),
        (("nightly", "x", "--cron", "0 3 * * *", "--every", "1h"), 4, "every"),
        (("nightly", "--priority", "3"), 2, "--priority"),
        (("nightly", "--pause", "--resume"), 2, "--resume"),
        (("bad name", "x", "--every", "1h"), 4, "bad name"),
    ],
)
@pytest.mark.usefixtures("store")
def test_what_is_wrong_is_refused_by_its_name(run: Run, arguments: tuple[str, ...], code: int, word: str) -> None:
    ran = run("schedule", "jobs", *arguments)

    assert ran.code == code, ran
    assert ran.err.count("\n") == 1
    assert word in ran.err
