"""`holdfast run`: a program for each message."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast

Run = Callable[..., Any]

pytestmark = pytest.mark.slow


@contextmanager
def running(queue: str, *options: str, handler: str) -> Iterator["subprocess.Popen[str]"]:
    """`holdfast run` with a line of shell for each message; its answers as JSON lines."""
    program = [sys.executable, "-u", "-m", "holdfast", "run", queue, "--json", *options]
    with subprocess.Popen(
        [*program, "--", "/bin/sh", "-c", handler, "handler", "{}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def outcomes(process: "subprocess.Popen[str]", number: int) -> list[Any]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(number)]


def stop(process: "subprocess.Popen[str]", number: int = signal.SIGTERM) -> tuple[str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out, err


def stats(run: Run, queue: str = "jobs") -> Any:
    return run("stats", queue, "--json").json


@pytest.mark.usefixtures("store")
def test_exit_code_0_acks_and_any_other_nacks_with_the_last_words(run: Run, tmp_path: Path) -> None:
    run("enqueue", "acme/jobs", "good")
    run("enqueue", "acme/jobs", "bad", "--max-retries", 0)
    handler = """body=$(cat); echo "$body" >> seen; [ "$body" = "$(cat "$1")" ] || exit 1
        [ "$HOLDFAST_QUEUE_TENANT/$HOLDFAST_QUEUE_NAME" = acme/jobs ] || exit 2
        cmp "$1" "$HOLDFAST_QUEUE_PAYLOAD_PATH" || exit 3
        [ "$body" = good ] || { echo first >&2; echo last words >&2; exit 7; }"""

    with running("acme/jobs", handler=handler) as process:
        first, second = outcomes(process, 2)
        _, err = stop(process)

    assert (tmp_path / "seen").read_text() == "good\nbad\n"
    assert (first["outcome"], second["outcome"]) == ("succeeded", "failed")
    assert second["error"] == "exit code 7: first\nlast words"
    assert "last words" in err, "what a program says is passed on"
    assert run("dlq", "acme/jobs", "--json").json["last_error"] == "exit code 7: first\nlast words"
    assert stats(run, "acme/jobs")["ready"] == 0
    assert not list(tmp_path.glob("holdfast-run-*"))


@pytest.mark.usefixtures("store")
def test_exit_code_75_puts_it_off_without_a_failure(run: Run) -> None:
    id = run("enqueue", "jobs", "x").out.strip()

    with running("jobs", "--later", "1h", handler="exit 75") as process:
        [outcome] = outcomes(process, 1)
        stop(process)

    info = run("get", "jobs", id, "--json").json
    assert outcome["outcome"] == "deferred"
    assert (info["failures"], info["state"]) == (0, "ready")
    assert info["visible_at"] - info["enqueued_at"] > 3_500_000


@pytest.mark.usefixtures("store")
def test_a_program_longer_than_its_lease_keeps_its_message(run: Run) -> None:
    run("enqueue", "jobs", "x")

    with running("jobs", "--lease", "600ms", handler="sleep 2") as process:
        [outcome] = outcomes(process, 1)
        stop(process)

    assert (outcome["outcome"], outcome["attempt"]) == ("succeeded", 1)


@pytest.mark.usefixtures("store")
def test_told_to_stop_it_lets_a_program_finish(run: Run, tmp_path: Path) -> None:
    run("enqueue", "jobs", "x")

    with running("jobs", handler="touch began; sleep 1; touch ended") as process:
        wait_for(tmp_path / "began")
        out, _ = stop(process)

    assert (tmp_path / "ended").exists()
    assert json.loads(out)["outcome"] == "succeeded"


@pytest.mark.usefixtures("store")
def test_past_its_grace_the_program_is_ended_with_all_it_started_and_the_message_released(
    run: Run, tmp_path: Path
) -> None:
    id = run("enqueue", "jobs", "x").out.strip()

    with running("jobs", "--grace", "0", handler='trap "" TERM; sleep 60 & echo $! > pid; wait; sleep 60') as process:
        wait_for(tmp_path / "pid")
        out, _ = stop(process)

    info = run("get", "jobs", id, "--json").json
    assert json.loads(out)["outcome"] == "released"
    assert (info["state"], info["failures"], info["releases"]) == ("ready", 0, 1)
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.usefixtures("store")
def test_a_program_that_hangs_is_ended_after_its_timeout(run: Run, tmp_path: Path) -> None:
    run("enqueue", "jobs", "x", "--max-retries", 0)

    with running("jobs", "--timeout", "500ms", handler="echo $$ > pid; exec sleep 60") as process:
        [outcome] = outcomes(process, 1)
        stop(process)

    assert outcome["outcome"] == "failed"
    assert "timeout" in outcome["error"]
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.usefixtures("server")
def test_a_lost_lease_ends_the_program(run: Run, tmp_path: Path) -> None:
    id = run("enqueue", "jobs", "x").out.strip()

    with running("jobs", "--lease", "900ms", handler="echo $$ > pid; exec sleep 60") as process:
        wait_for(tmp_path / "pid")
        with holdfast.open(os.environ["HOLDFAST_URL"]) as hf:
            hf.queue("jobs").remove(id)
        [outcome] = outcomes(process, 1)
        stop(process)

    assert outcome["outcome"] == "lost"
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.usefixtures("server")
def test_several_run_at_once(run: Run, tmp_path: Path) -> None:
    run("enqueue", "jobs", "x", "--count", 3, "-q")

    # Each waits until all have begun: one after the other they never would.
    handler = "touch began-$HOLDFAST_QUEUE_MESSAGE_ID; while [ $(ls began-* | wc -l) -lt 3 ]; do sleep 0.05; done"
    with running("jobs", "--concurrency", "3", handler=handler) as process:
        assert {each["outcome"] for each in outcomes(process, 3)} == {"succeeded"}
        stop(process, signal.SIGINT)


@pytest.mark.usefixtures("store")
def test_what_can_never_work_is_refused_at_once(run: Run) -> None:
    ran = run("run", "jobs", "--", "no-such-program")
    assert (ran.code, ran.out) == (2, "")
    assert "no-such-program" in ran.err
    assert run("run", "jobs").code == 2
    assert run("run", "bad name", "--", "true").code == 4
    assert run("run", "jobs", "--url", "./typo", "--", "true").code == 3


@pytest.mark.spec("10.10")
@pytest.mark.usefixtures("alone", "server")
def test_a_worker_of_python_handlers_runs_by_its_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import os, pathlib, holdfast\n"
        "worker = holdfast.Worker(os.environ['HOLDFAST_URL'])\n"
        "@worker.handler('jobs')\n"
        "def handle(message: holdfast.Message) -> None:\n"
        "    pathlib.Path('seen').write_bytes(message.payload)\n"
        "    worker.stop()\n"
    )
    run("enqueue", "jobs", "hello")

    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "shop:worker"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "seen").read_text() == "hello"
    assert all(line.startswith("holdfast: ") for line in ran.stderr.splitlines())
    assert run("worker", "no_such_module:worker").code == 4


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists() and (path.name != "pid" or path.read_text().strip()):
            return
        time.sleep(0.05)
    raise AssertionError(f"{path.name} never came")


def is_gone(pid: int) -> bool:
    """Return whether it has ended, even if its exit code has not been read yet."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False
