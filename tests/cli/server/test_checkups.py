"""`doctor`, `bench`, `top` and `tail` without a terminal."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.inspection import top

Run = Callable[..., Any]


def findings(ran: Any) -> dict[str, tuple[str, str]]:
    return {each["check"]: (each["status"], each["found"]) for each in ran.lines}


@pytest.mark.usefixtures("server")
def test_a_healthy_server_is_found_so(run: Run) -> None:
    ran = run("doctor", "--json")

    found = findings(ran)
    assert ran.code == 0, found
    assert found["server"][0] == "ok"
    assert found["server version"][0] == "ok"
    assert found["clock skew"][0] == "ok"
    assert found["access"][0] == "ok"
    assert "variable HOLDFAST_URL" in found["url"][1]


@pytest.mark.usefixtures("alone")
def test_a_server_that_is_not_there_is_exit_code_4_with_advice(run: Run, free_port: int) -> None:
    ran = run("doctor", "--url", f"http://127.0.0.1:{free_port}", "--json")

    assert ran.code == 4
    [server] = [each for each in ran.lines if each["check"] == "server"]
    assert server["status"] == "bad"
    assert "holdfast serve" in server["advice"]


def test_a_stores_disk_and_leases_are_looked_at(run: Run, store: str) -> None:
    with holdfast.open(store) as hf:
        queue = hf.queue("jobs")
        queue.enqueue([b"a", b"b"])
        queue.claim(2, lease="1ms")
        assert queue.claim(2, wait="30s", lease="1m")

    ran = run("doctor", "--json")
    found = findings(ran)
    assert ran.code == 0
    assert found["fsync"][0] in ("ok", "warn")
    assert "free" in found["disk space"][1]
    assert found["durability"] == ("ok", "os (variable HOLDFAST_DURABILITY)")
    assert found["leases"][0] == "warn"
    assert "default/jobs" in found["leases"][1]


def test_a_wrong_setting_is_found_and_secrets_are_not_shown(
    run: Run, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_JWT_SECRET", "canary-canary-canary-canary-canary")
    ran = run("doctor", "--json")
    assert ran.code == 0
    assert "canary" not in ran.out

    monkeypatch.setenv("HOLDFAST_PORT", "http")
    ran = run("doctor", "--json")
    assert ran.code == 4
    assert findings(ran)["settings"][0] == "bad"


def test_a_store_in_use_is_no_alarm(run: Run, store: str) -> None:
    with holdfast.open(store):
        ran = run("doctor", "--json")

    assert ran.code == 0
    assert findings(ran)["store"][0] == "warn"


@pytest.mark.usefixtures("alone")
def test_bench_measures_a_store_of_its_own_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    ran = run("bench", "--messages", 200, "--singles", 10, "--batch", 50, "--json")

    assert ran.code == 0
    steps = {each["step"]: each for each in ran.lines}
    assert len(steps) == 7
    assert {each["messages"] for each in steps.values()} == {200, 10}
    assert all(each["per_s"] > 0 and each["p50_ms"] <= each["p99_ms"] for each in steps.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("server")
def test_bench_of_a_server_deletes_its_queue(run: Run) -> None:
    assert run("bench", "--messages", 50, "--singles", 3, "-q").code == 0
    assert [each for each in run("queues", "--json").lines if not each["draining"]] == []


@pytest.mark.usefixtures("server")
def test_tail_follows_what_happens(run: Run) -> None:
    run("enqueue", "old", "x")
    run("enqueue", "jobs", "x")
    program = [sys.executable, "-u", "-m", "holdfast", "tail", "--last", "1", "--queue", "jobs", "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as tail:
        try:
            assert tail.stdout is not None
            began = json.loads(tail.stdout.readline())
            run("enqueue", "old", "x")
            run("dequeue", "jobs", "--json")
            then = json.loads(tail.stdout.readline())
        finally:
            tail.terminate()

    assert [(each["queue"], each["event"]) for each in (began, then)] == [("jobs", "enqueued"), ("jobs", "claimed")]
    assert began["id"] == then["id"]


def test_tail_begins_with_the_last_events_of_an_object_store(run: Run, tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    for number in range(3):
        run("enqueue", f"q{number}", "{}", "--url", url)

    shown = run("tail", "--no-follow", "--last", 2, "--json", "--url", url).lines

    assert [each["queue"] for each in shown] == ["q1", "q2"]


def test_tail_begins_with_the_last_events_and_filters(run: Run, store: str) -> None:
    with holdfast.open(store) as hf:
        for number in range(40):
            hf.queue(f"q{number % 2}", tenant="acme" if number % 4 else "other").enqueue(b"x")
        hf.queue("q0", tenant="acme").claim()

    assert len(run("tail", "--no-follow").out.splitlines()) == 10
    assert len(run("tail", "--no-follow", "--all").out.splitlines()) == 41
    assert run("tail", "--no-follow", "--last", 0).out == ""
    assert run("tail", "--no-follow", "--event", "claimed", "--json").json["tenant"] == "acme"
    assert {each["tenant"] for each in run("tail", "--no-follow", "--all", "-T", "other", "--json").lines} == {"other"}
    assert {each["queue"] for each in run("tail", "--no-follow", "--all", "--queue", "acme/q1", "--json").lines} == {
        "q1"
    }
    assert run("tail", "--event", "nonsense").code == 2


def test_top_lists_every_tenants_queues(run: Run, store: str) -> None:
    run("enqueue", "acme/a", "x")
    run("enqueue", "b", "x", "--count", 2, "-q")

    rows = run("top", "--once", "--interval", 0.1, "--json").lines
    assert [(each["queue"], each["ready"]) for each in rows] == [("default/b", 2), ("acme/a", 1)]
    assert [each["queue"] for each in run("top", "--once", "-i", 0.1, "-T", "acme", "--json").lines] == ["acme/a"]


@pytest.mark.spec("8.10")
def test_top_shows_the_share_of_each_busy_queue_of_reads_and_writes(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "data", durability="os") as hf:
        hf.queue("idle", tenant="acme").set_policy()
        busy = hf.queue("busy", tenant="acme")
        for _ in range(10):
            busy.enqueue([b"x"] * 500, delay=1)
        rows = {row["queue"]: row for row in top.frame(hf, "acme", top.Rates(hf, "acme"))}
    assert rows["acme/busy"]["hot_writes"].items() >= {"m": 1.0, "vi": 1.0}.items()
    assert (rows["acme/idle"]["hot_reads"], rows["acme/idle"]["hot_writes"]) == ({}, {})
    shown = top.with_hottest({"hot_reads": {}, "hot_writes": {"m": 0.2, "vi": 0.6123}})
    assert shown == {"hot_reads": None, "hot_writes": "vi 61%"}
