"""`holdfast inspect`: everything about one message."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from tests.cli.conftest import assert_refused

Run = Callable[..., Any]


class Held(NamedTuple):
    id: str
    receipt: str


@pytest.fixture
def objects(alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An object store, whose journal counts in another way."""
    url = f"file://{tmp_path}/bucket"
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Held:
    """A message that failed once and is held now, in one of several queues; embedded unless the test says otherwise."""
    with holdfast.open(request.getfixturevalue(getattr(request, "param", "store"))) as hf:
        hf.queue("other").enqueue(b"x")
        queue = hf.queue("jobs")
        [id] = queue.enqueue({"order": 7}, headers={"kind": "report"}, group="g", correlation_id="c-1")
        queue.claim()[0].nack("not today", delay=0)
        [message] = queue.claim(lease=3_600, owner="worker-7", wait=30)
        return Held(id, message.receipt)


@pytest.mark.spec("10.8")
@pytest.mark.parametrize("held", ["store", "server", "objects"], indirect=True)
def test_a_message_is_found_and_everything_about_it_is_shown(run: Run, held: Held) -> None:
    found = run("inspect", held.id, "--json")
    assert run("inspect", held.id, "--queue", "jobs", "--json").json == found.json

    told = found.json
    assert (told["tenant"], told["queue"], told["id"], told["state"]) == ("default", "jobs", held.id, "in_flight")
    assert (told["owner"], told["attempt"], told["failures"]) == ("worker-7", 2, 1)
    assert told["lease_expires_at"] - told["claimed_at"] == 3_600_000
    assert (told["last_error"], told["headers"], told["group"]) == ("not today", {"kind": "report"}, "g")
    assert (told["correlation_id"], told["payload"]) == ("c-1", {"order": 7})
    assert [each["event"] for each in told["timeline"]] == ["enqueued", "claimed", "retried", "claimed"]
    assert told["timeline_gap"] is None
    assert held.receipt not in found.out


@pytest.mark.spec("10.8")
def test_people_read_who_holds_it_until_when_its_payload_and_its_timeline(run: Run, held: Held) -> None:
    ran = run("inspect", held.id)

    assert ran.code == 0
    lines = ran.out.splitlines()
    fields = {line[:15].strip(): line[15:].strip() for line in lines[: lines.index("")]}
    assert (fields["state"], fields["owner"], fields["last error"]) == ("in_flight", "worker-7", "not today")
    assert "(expires in " in fields["lease expires"]
    assert fields["enqueued"].endswith(" ago)")
    assert lines[lines.index("payload:") + 1] == '  {"order":7}'
    timeline = lines[lines.index("timeline:") + 1 :]
    assert [line.split()[2] for line in timeline] == ["enqueued", "claimed", "retried", "claimed"]
    assert "'not today'" in timeline[2]
    assert held.receipt not in ran.out


def test_quiet_prints_the_id_of_a_message_that_exists(run: Run, held: Held) -> None:
    assert run("inspect", held.id, "--quiet").out == f"{held.id}\n"


@pytest.mark.usefixtures("store")
def test_a_message_that_does_not_exist_is_exit_code_3(run: Run) -> None:
    id = run("enqueue", "jobs", "x").out.strip()

    absent = "018cc251-f400-7007-8000-000000000000"
    assert_refused(run("inspect", absent), 3, absent, "tenant default")
    assert_refused(run("inspect", id, "--queue", "absent"), 3, "default/absent")
    assert_refused(run("inspect", absent, "--queue", "jobs"), 3, absent)
    assert_refused(run("inspect", "junk"), 4, "junk")
    assert_refused(run("inspect", id, "--tenant", "acme"), 3, "tenant acme")


def test_a_message_that_is_gone_is_told_by_its_last_event(run: Run, store: str) -> None:
    with holdfast.open(store) as hf:
        [id] = hf.queue("jobs").enqueue(b"")
        hf.queue("jobs").claim()[0].ack()

    assert_refused(run("inspect", id), 3, "succeeded", "default/jobs")


def test_a_long_payload_is_cut_and_written_whole_when_asked(run: Run, store: str) -> None:
    text = "é" * 20_000
    with holdfast.open(store) as hf:
        # Its 16 KiB end in the middle of a character.
        [id] = hf.queue("jobs").enqueue(b"x" + text.encode(), content_type="text/plain")
        [raw] = hf.queue("jobs").enqueue(bytes(range(256)) * 100)

    shown = run("inspect", id, "--events", 0)
    assert "the first 16.0KiB" in shown.out
    assert shown.out.splitlines()[-1] == f"  x{'é' * 8_191}"
    assert run("inspect", id, "--events", 0, "--json").json["payload_preview"] == f"x{'é' * 8_191}"
    assert run("inspect", id, "--payload").out == f"x{text}"
    assert "25,600 bytes that are not text" in run("inspect", raw).out
    assert len(run("inspect", raw, "--json").json["payload_preview_base64"]) == 4 * -(-16_384 // 3)
    assert "payload_base64" in run("inspect", raw, "--json", "--payload").json


def test_a_large_payload_is_not_fetched_to_show_its_beginning(
    run: Run, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_PAYLOAD", "4MiB")
    with holdfast.open(store, max_payload="4MiB") as hf:
        [id] = hf.queue("jobs").enqueue(bytes(2 << 20))

    assert "2.0MiB, not shown" in run("inspect", id).out
    assert "payload_base64" not in run("inspect", id, "--json").json


def test_a_long_journal_is_looked_through_at_both_ends_and_the_gap_is_said(run: Run, store: str) -> None:
    with holdfast.open(store) as hf:
        hf.queue("noise").enqueue([b""] * 50)
        [id] = hf.queue("jobs").enqueue(b"")
        queue = hf.queue("jobs")
        queue.claim()[0].nack(delay=0)
        hf.queue("noise").enqueue([b""] * 100)
        queue.claim(wait=30)[0].release()
        hf.queue("noise").enqueue([b""] * 100)
        queue.claim(lease=3_600)

    cut = run("inspect", id, "--events", 60, "--json").json
    assert [each["event"] for each in cut["timeline"]] == ["enqueued", "claimed", "retried", "claimed"]
    assert "--events" in cut["timeline_gap"]
    assert "--events" in run("inspect", id, "--events", 60).out
    # The two looks meet.
    whole = run("inspect", id, "--events", 150, "--json").json
    assert [each["event"] for each in whole["timeline"]] == [
        *("enqueued", "claimed", "retried", "claimed", "released", "claimed")
    ]
    assert whole["timeline_gap"] is None
    assert "timeline" not in run("inspect", id, "--events", 0, "--json").json
