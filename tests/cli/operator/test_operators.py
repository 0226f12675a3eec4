"""Looking into queues, and the operators' verbs."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.cli.conftest import assert_refused

Run = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def failed(store: str) -> list[str]:
    """Two dead letters, one of each error."""
    with holdfast.open(store) as hf:
        queue = hf.queue("jobs")
        ids = [str(each) for each in queue.enqueue([{"n": 1}, {"n": 2}], max_retries=0)]
        for message, error in zip(
            queue.claim(2), ("timeout: too slow", "bad \x1b[31mpayload\nwith lines"), strict=True
        ):
            message.nack(error)
    return ids


def counts(run: Run, queue: str = "jobs") -> tuple[int, int, int]:
    stats = run("stats", queue, "--json").json
    return stats["ready"] + stats["delayed"], stats["in_flight"], stats["failed"]


def test_stats_are_of_a_queue_or_of_the_tenant(run: Run) -> None:
    run("enqueue", "a", "x", "--count", 2, "-q")
    run("enqueue", "b", "x", "-q")

    assert run("stats", "a", "--json").json["ready"] == 2
    assert run("stats", "--json").json["ready"] == 3
    assert run("stats", "none").code == 3
    assert run("queues", "-q").out == "a\nb\n"


def test_get_writes_the_payload_alone_when_asked(run: Run) -> None:
    id = run("enqueue", "jobs", "byte for byte").out.strip()

    assert run("get", "jobs", id, "--payload").out == "byte for byte"
    assert run("get", "jobs", id, "-q").out == f"{id}\n"
    assert run("get", "jobs", "1").code == 3
    assert run("get", "jobs", "nonsense").code == 4


def test_a_policy_is_shown_and_changed_by_field(run: Run) -> None:
    ran = run("policy", "jobs", "lease=30s", "max_retries=5", "ttl=1d", "limits.write_ops_per_s=200", "on_ttl=drop")

    assert ran.code == 0
    policy = run("policy", "jobs", "--json").json
    assert (policy["lease_ms"], policy["max_retries"], policy["ttl_ms"]) == (30_000, 5, 86_400_000)
    assert policy["limits"]["write_ops_per_s"] == 200
    assert policy["on_ttl"] == "drop"
    assert run("policy", "jobs", "ttl=none", "lease_ms=7000", "--json").json["ttl_ms"] is None
    assert run("policy", "jobs", "--json").json["lease_ms"] == 7_000
    assert "nonsense" in run("policy", "jobs", "nonsense=1").err
    assert run("policy", "jobs", "lease").code == 2


def test_a_tenants_quotas_are_shown_and_changed(run: Run) -> None:
    ran = run("tenants", "acme", "quotas.max_messages=5", "weight=3", "--json")

    assert ran.json["quotas"]["max_messages"] == 5
    assert ran.json["weight"] == 3
    assert "acme" in run("tenants", "-q").out.split()
    assert run("enqueue", "acme/jobs", "x", "--count", 6).code == 75


@pytest.mark.spec("3.8")
def test_a_paused_queue_gives_nothing_until_it_is_resumed(run: Run) -> None:
    run("enqueue", "jobs", "x")

    assert run("pause", "jobs", "--json").json == {"tenant": "default", "queue": "jobs", "paused": True}
    assert run("dequeue", "jobs", "--block", 0).code == 3
    run("resume", "jobs")
    assert run("dequeue", "jobs", "--block", 0).code == 0


def test_what_cannot_be_undone_is_not_done_unasked(run: Run, failed: list[str]) -> None:
    run("enqueue", "jobs", "x")

    for arguments in (
        ("purge", "jobs"),
        ("cancel", "jobs", "--priority", 100),
        ("delete", "jobs"),
        ("dlq", "jobs", "purge"),
        ("dlq", "jobs", "remove", failed[0]),
    ):
        ran = run(*arguments)
        assert ran.code == 2, arguments
        assert "give --yes" in ran.err
    assert counts(run) == (1, 0, 2)


def test_purge_takes_what_is_ready_or_what_failed(run: Run, failed: list[str]) -> None:
    run("enqueue", "jobs", "x", "--count", 3, "-q")

    assert run("purge", "jobs", "--yes", "--json").json["changed"] == 3
    assert counts(run) == (0, 0, 2)
    assert run("purge", "jobs", "--state", "failed", "-y").out == "removed 2 (default/jobs)\n"
    assert counts(run) == (0, 0, 0)


def test_cancel_takes_what_matches(run: Run) -> None:
    run("enqueue", "jobs", "a", "-H", "kind=old")
    run("enqueue", "jobs", "b", "-H", "kind=new")

    assert run("cancel", "jobs", "--yes").code == 2, "without a filter it would be a purge"
    assert run("cancel", "jobs", "--header", "kind=old", "--yes", "--json").json["changed"] == 1
    assert counts(run) == (1, 0, 0)


def test_move_and_reprioritise_change_what_is_ready(run: Run) -> None:
    run("enqueue", "jobs", "a")
    run("enqueue", "jobs", "b", "--priority", 5)

    assert run("reprioritise", "jobs", 7, "--priority", 100, "--json").json["changed"] == 1
    assert run("move", "jobs", "other/elsewhere", "--priority", 7, "--json").json["changed"] == 1
    assert counts(run) == (1, 0, 0)
    assert counts(run, "other/elsewhere") == (1, 0, 0)


def test_a_deleted_queue_is_gone(run: Run) -> None:
    run("enqueue", "jobs", "a")

    assert run("delete", "jobs", "--force-after", 0, "--yes").code == 0
    assert run("stats", "jobs").code == 3


# --- Dead letters --------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_by_what_they_have_in_common(run: Run, failed: list[str]) -> None:
    assert run("dlq", "jobs", "-q").out.split() == failed
    assert run("dlq", "jobs", "--error-contains", "timeout", "-q").out.split() == failed[:1]
    assert run("dlq", "jobs", "--older-than", "1h", "-q").out == ""
    assert run("dlq", "jobs", "--limit", 1, "-q").out.split() == failed[:1]


def test_what_a_message_brings_cannot_move_the_terminal(run: Run, failed: list[str]) -> None:
    for ran in (run("dlq", "jobs"), run("dlq", "jobs", "show", failed[1]), run("tail", "--no-follow")):
        assert ran.code == 0
        assert "\x1b" not in ran.out
        assert "payload" in ran.out


def test_one_dead_letter_is_shown_whole(run: Run, failed: list[str]) -> None:
    letter = run("dlq", "jobs", "show", failed[0], "--json").json

    assert (letter["id"], letter["last_error"], letter["payload"]) == (failed[0], "timeout: too slow", {"n": 1})
    assert run("dlq", "jobs", "show").code == 2
    ready = run("enqueue", "jobs", "x").out.strip()
    assert run("dlq", "jobs", "show", ready).code == 3


def test_dead_letters_are_removed_one_by_one_or_all(run: Run, failed: list[str]) -> None:
    assert run("dlq", "jobs", "remove", failed[0], "--yes").code == 0
    assert run("dlq", "jobs", "remove", failed[0], "--yes").code == 3
    assert run("dlq", "jobs", "purge", "--yes", "--json").json["changed"] == 1


@pytest.mark.spec("3.8")
def test_redrive_brings_back_what_matches(run: Run, failed: list[str]) -> None:
    assert run("redrive", "jobs", "--dry-run", "--json").json["matched"] == 2
    assert counts(run) == (0, 0, 2)
    assert run("redrive", "jobs", "--error-contains", "timeout").out == "redriven 1 (default/jobs)\n"
    assert run("dlq", "jobs", "redrive", "--json").json["changed"] == 1
    assert counts(run) == (2, 0, 0)
    assert run("redrive", "jobs", "--id", failed[0]).code == 3


@pytest.mark.spec("3.8")
def test_a_message_is_edited_and_then_redriven(run: Run, failed: list[str], tmp_path: Path) -> None:
    (tmp_path / "better.json").write_text('{"n":  3}')

    assert run("redrive", "jobs", "--edit-file", tmp_path / "better.json").code == 2
    assert run("redrive", "jobs", "--id", failed[0], "--edit-file", tmp_path / "better.json").code == 0
    assert run("get", "jobs", failed[0], "--payload").out == '{"n":  3}'


def test_an_edited_payload_that_is_almost_json_is_refused(run: Run, failed: list[str], tmp_path: Path) -> None:
    (tmp_path / "worse.json").write_text('{"n": oops}')
    edit = ("redrive", "jobs", "--id", failed[0], "--edit-file", tmp_path / "worse.json")

    assert_refused(run(*edit), 2, "line 1 column 7", "--text")
    assert counts(run) == (0, 0, 2)
    assert run(*edit, "--text").code == 0
    assert run("get", "jobs", failed[0], "--payload").out == '{"n": oops}'


# --- On a terminal -------------------------------------------------------------------------------------------------


def on_a_terminal(keys: bytes, *arguments: str, **environment: str) -> tuple[int, str]:
    """Return the output of a command on a terminal, and its exit code."""
    program = [sys.executable, "-m", "holdfast", *arguments]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", "COLUMNS": "120", "LINES": "40", **environment})
        os.execv(program[0], program)
    shown = b""
    is_answered = False
    while select.select([terminal], [], [], 30)[0]:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
        if not is_answered and (b"]:" in shown or b"q quits" in shown):
            is_answered = True
            os.write(terminal, keys)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_on_a_terminal_it_asks_with_the_number(run: Run) -> None:
    run("enqueue", "jobs", "x", "--count", 3, "-q")

    code, shown = on_a_terminal(b"n\n", "purge", "jobs")
    assert code == 1
    assert "Remove 3 ready messages from default/jobs? [y/N]:" in shown
    assert "nothing was changed" in shown
    assert counts(run) == (3, 0, 0)

    assert on_a_terminal(b"y\n", "purge", "jobs")[0] == 0
    assert counts(run) == (0, 0, 0)


@pytest.mark.slow
def test_on_a_terminal_there_is_colour_unless_no_color_is_set(run: Run, failed: list[str]) -> None:
    assert "\x1b[1;31m" in on_a_terminal(b"", "queues")[1]
    assert "\x1b[1;31m" not in on_a_terminal(b"", "queues", NO_COLOR="1")[1]
    assert "\x1b[" not in run("queues").out


def test_top_shows_the_queues_until_q_is_pressed(run: Run, failed: list[str]) -> None:
    code, shown = on_a_terminal(b"q", "top")

    assert code == 0
    assert "default/jobs" in shown
    assert "flight" in shown


@pytest.mark.spec("10.4")
@pytest.mark.slow
def test_long_work_shows_a_bar_and_one_message_none() -> None:
    assert "to default/jobs" in on_a_terminal(b"", "enqueue", "jobs", "x", "--count", "20000")[1]
    assert "to default/jobs" not in on_a_terminal(b"", "enqueue", "jobs", "x")[1]


def test_a_reader_that_leaves_ends_it_without_a_word(shell: Callable[..., Any], run: Run) -> None:
    run("enqueue", "jobs", "x", "--count", 3_000, "-q")

    ran = shell("holdfast tail --all | head -n 1")

    assert ran.err == ""
    assert "enqueued" in ran.out


def test_ctrl_c_ends_a_follower_quietly(run: Run) -> None:
    run("enqueue", "jobs", "x")
    program = [sys.executable, "-u", "-m", "holdfast", "tail"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert "enqueued" in tail.stdout.readline()
        tail.send_signal(2)
        try:
            _, err = tail.communicate(timeout=30)
        finally:
            tail.kill()  # or a follower that goes on would hold up everything

    assert (tail.returncode, err) == (130, "")
