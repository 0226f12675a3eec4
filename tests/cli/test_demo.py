"""The demo runs, loses nothing, and leaves a store that verifies."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.demo_load import Tally
from holdfast.cli.demo_view import summarise

pytestmark = pytest.mark.slow


def test_the_demo_loses_nothing_and_says_so(run: Callable[..., Any]) -> None:
    ran = run("demo", "--seconds", 1)

    assert ran.code == 0, ran
    assert "lost 0, succeeded twice 0" in ran.out
    assert ran.out.rstrip().endswith("0 violations")
    assert "a worker dies" in ran.out
    assert "\x1b" not in ran.out


def test_the_demos_numbers_agree_with_the_store_it_leaves(run: Callable[..., Any], tmp_path: Path) -> None:
    ran = run("demo", "--seconds", 1, "--dir", tmp_path / "store", "--json")

    answer = json.loads(ran.out)
    summary, report = answer["summary"], answer["verify"]
    assert ran.code == 0
    assert summary["enqueued"] == summary["succeeded"] + summary["failed"] + summary["waiting"] > 0
    assert summary["expired"] >= summary["died_holding"] > 0
    assert report["failed"] == summary["failed"]
    assert run("verify", tmp_path / "store").code == 0


def test_a_directory_that_is_not_empty_is_refused(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")

    ran = run("demo", "--dir", tmp_path)

    assert ran.code == 4
    assert "not an empty directory" in ran.err


def test_an_interrupted_demo_ends_in_order() -> None:
    program = [sys.executable, "-u", "-m", "holdfast", "demo", "--seconds", "60"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert "enqueued" in demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=30)

    assert demo.returncode == 130, (out, err)
    assert "lost 0" in out
    assert err == ""


def test_on_a_terminal_the_demo_shows_a_table() -> None:
    ours, theirs = os.openpty()
    program = [sys.executable, "-m", "holdfast", "demo", "--seconds", "1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    with subprocess.Popen(program, stdout=theirs, stderr=theirs, env=environment) as demo:
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)

    assert demo.returncode == 0
    assert b"acme/orders" in shown
    assert b"done/s" in shown
    assert b"lost 0" in shown
    assert not re.search(rb"\x1b\[[349][0-7]", shown), "NO_COLOR was set"


def test_a_message_that_was_answered_and_is_nowhere_counts_as_lost() -> None:
    with holdfast.open("memory://") as hf:
        [id] = hf.queue("orders", tenant="acme").enqueue(b"one")
        for queue, tenant in (("emails", "acme"), ("thumbnails", "globex"), ("ledger", "initech")):
            hf.queue(queue, tenant=tenant).set_policy(max_retries=1)

        kept = summarise(hf, Tally(accepted=[id.snowflake]))
        lost = summarise(hf, Tally(accepted=[id.snowflake, id.snowflake + 1]))

    assert (kept.lost, kept.waiting) == (0, 1)
    assert lost.lost == 1
