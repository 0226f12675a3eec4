"""The demo kills a worker, loses nothing, says so, and leaves a store that verifies."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.demo.audit import audit
from holdfast.cli.demo.producers import DEMO_QUEUES, Accepted, ExpectedOutcome, set_policies
from holdfast.cli.demo.workers import DemoHeldMessage, DemoWorker

pytestmark = pytest.mark.slow

DEMO = [sys.executable, "-u", "-m", "holdfast", "demo"]
PATIENCE_S = 120


def run_demo(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DEMO, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_a_killed_worker_s_messages_are_delivered_again_and_nothing_is_lost() -> None:
    ran = run_demo("--seconds", 2)

    assert (ran.returncode, ran.stderr) == (0, "")
    [held] = re.findall(r"is killed with SIGKILL in the middle of (\d+) messages", ran.stdout)
    assert f"held {held} messages: {held} were delivered again under a higher version" in ran.stdout
    assert "lost 0, acked twice 0" in ran.stdout
    assert "0 violations" in ran.stdout
    assert ran.stdout.rstrip().endswith("verdict: every message ended as expected, and nothing was lost")
    assert "\x1b" not in ran.stdout


def test_without_a_server_s_parts_the_death_is_simulated() -> None:
    ran = run_demo("--seconds", 2, "--one-process")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "dies (simulated) in the middle of" in ran.stdout
    assert "nothing was lost" in ran.stdout


def test_the_demo_s_numbers_agree_with_the_store_it_leaves(run: Callable[..., Any], tmp_path: Path) -> None:
    ran = run_demo("--seconds", 2, "--dir", tmp_path / "store", "--json")

    answer = json.loads(ran.stdout)
    summary, report = answer["summary"], answer["verify"]
    assert ran.returncode == 0
    assert summary["enqueued"] == summary["succeeded"] + summary["failed"] > 0
    assert summary["expired"] >= summary["died_holding"] == summary["redelivered"] > 0
    assert summary["faults"] == []
    assert report["failed"] == summary["failed"]
    assert run("verify", tmp_path / "store").code == 0


def test_a_directory_that_is_not_empty_is_refused(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")

    ran = run("demo", "--dir", tmp_path)

    assert ran.code == 4
    assert "not an empty directory" in ran.err


def test_an_interrupted_demo_ends_in_order() -> None:
    with subprocess.Popen(
        [*DEMO, "--seconds", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        pids = worker_pids(demo.stdout.readline())
        assert "enqueued" in demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=PATIENCE_S)

    assert demo.returncode == 130, (out, err)
    assert "lost 0" in out
    assert err == ""
    assert not any(map(is_alive, pids))


def test_the_workers_of_a_killed_demo_end_too(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # nobody is left to delete its store
    program = [*DEMO, "--seconds", "60"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None
        pids = worker_pids(demo.stdout.readline())
        demo.kill()

    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_on_a_terminal_the_demo_shows_queues_and_workers() -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    with subprocess.Popen([*DEMO, "--seconds", "1"], stdout=theirs, stderr=theirs, env=environment) as demo:
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], PATIENCE_S)[0]:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)

    assert demo.returncode == 0
    for text in (b"acme/orders", b"dead letters", b"worker-3", b"killed", b"nothing was lost"):
        assert text in shown
    assert not re.search(rb"\x1b\[[349][0-7]", shown), "NO_COLOR was set"


# --- The audit -----------------------------------------------------------------------------------------------------


async def test_the_audit_finds_a_message_that_was_answered_and_is_nowhere() -> None:
    async with holdfast.open_async("memory://") as hf:
        [id] = await enqueued(hf)

        kept = await audit(hf, Accepted({id.snowflake: ExpectedOutcome.ACKED}), [], is_interrupted=True)
        accepted = Accepted({id.snowflake: ExpectedOutcome.ACKED, id.snowflake + 1: ExpectedOutcome.ACKED})
        lost = await audit(hf, accepted, [], is_interrupted=True)

    assert (kept.lost, kept.waiting, kept.faults) == (0, 1, [])
    assert lost.lost == 1
    assert "1 messages were lost" in lost.faults


async def test_the_audit_finds_a_message_that_ended_otherwise_than_it_should() -> None:
    async with holdfast.open_async("memory://") as hf:
        [id] = await enqueued(hf)
        [message] = await hf.queue(DEMO_QUEUES[0].queue, tenant=DEMO_QUEUES[0].tenant).claim()
        await message.nack("broken", final=True)

        as_it_should = await audit(hf, Accepted({id.snowflake: ExpectedOutcome.USED_UP}), [], is_interrupted=True)
        otherwise = await audit(hf, Accepted({id.snowflake: ExpectedOutcome.ACKED}), [], is_interrupted=True)

    assert as_it_should.faults == []
    assert otherwise.faults == ["1 did not end as expected"]


async def test_the_audit_finds_that_what_a_dead_worker_held_was_not_delivered_again() -> None:
    async with holdfast.open_async("memory://") as hf:
        [id] = await enqueued(hf)
        [message] = await hf.queue(DEMO_QUEUES[0].queue, tenant=DEMO_QUEUES[0].tenant).claim()
        worker = DemoWorker("worker-3", 1, held_at_death=[DemoHeldMessage(DEMO_QUEUES[0], id, message.version)])
        await message.ack()

        found = await audit(hf, Accepted({id.snowflake: ExpectedOutcome.ACKED}), [worker], is_interrupted=False)

    assert found.faults == ["1 of the killed worker were not delivered again"]


async def enqueued(hf: holdfast.AsyncHoldfast) -> list[holdfast.MessageId]:
    await set_policies(hf)
    return await hf.queue(DEMO_QUEUES[0].queue, tenant=DEMO_QUEUES[0].tenant).enqueue(b"one")


def worker_pids(line: str) -> list[int]:
    pids = [int(each) for each in line.partition("processes ")[2].split(",")]
    assert len(pids) == 3, line
    return pids


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
