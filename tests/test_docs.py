"""The pages say what is so: their commands and programs run, and the tests and files that they name exist."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pytest

from tests.server.served import Served

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "examples" / "README.md", *DOCS.rglob("*.md")])
MINE = ("README.md", "quickstart.md", "guarantees.md", "coming-from-celery.md", "coming-from-sqs.md")
PATIENCE_S = 120.0


class Block(NamedTuple):
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Terminal:
    """A shell that is given one block after the other, in an empty directory with the virtual environment in it.

    What stands in for the reader's own steps: the clone is this one, `make` runs in it, and the port is a free one.
    """

    def __init__(self, directory: Path) -> None:
        (directory / ".venv").symlink_to(sys.prefix)
        self.port = free_port()
        self._seen = ""
        self._number = 0
        # Not what was passed to the make that runs the tests either.
        inherited = ("HOLDFAST_", "MAKE", "MFLAGS", "ARGS")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
        environment |= {
            "HOLDFAST_PORT": str(self.port),
            "HOLDFAST_URL": f"http://127.0.0.1:{self.port}",
            "PYTHONUNBUFFERED": "1",
            # The output that a reader sees on a terminal, which this pipe is not.
            "HOLDFAST_LOG_FORMAT": "console",
            "ARGS": "--seconds 1",
        }
        self._shell = subprocess.Popen(
            ["bash", "-e"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def enter(self, block: Block, *, ends: bool = True) -> None:
        """Type the command, and wait for its end unless it runs for ever."""
        text = block.text.replace("7077", str(self.port))
        text = text.replace("git clone <this repository> holdfast && cd holdfast", "true")
        text = re.sub(r"\bmake (\w+)", rf"make -C '{ROOT}' \1", text)
        self._number += 1
        mark = f"--- block {self._number} is through ---"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{text}\n{f'echo {mark!r}' if ends else ''}\n".encode())
        self._shell.stdin.flush()
        if ends:
            self.see(mark, "")

    def see(self, text: str, since: str) -> None:
        """Each line of it comes, … standing for anything."""
        for line in text.replace("7077", str(self.port)).splitlines():
            self._see_line(".*".join(map(re.escape, line.split("…"))), since)

    def _see_line(self, pattern: str, since: str) -> None:
        assert self._shell.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self._seen):
            ready, _, _ = select.select([self._shell.stdout], [], [], max(deadline - time.monotonic(), 0))
            piece = os.read(self._shell.stdout.fileno(), 1 << 16) if ready else b""
            assert piece, f"{pattern!r} was not seen{since}:\n{self._seen}"
            self._seen += piece.decode("utf-8", "replace")


def read_along(page: Path, tmp_path: Path) -> Iterator[Block]:
    """Do what the page says, and see what it shows."""
    with Terminal(tmp_path) as terminal:
        for block in blocks(page):
            if block.kind == "sh":
                terminal.enter(block)
                last = block
            elif block.kind == "text":
                terminal.see(block.text, f" after {last.text}")
            yield block


@pytest.mark.slow
def test_the_quickstart_s_commands_show_what_it_says(tmp_path: Path) -> None:
    done = list(read_along(DOCS / "quickstart.md", tmp_path))

    assert sum(block.kind == "sh" for block in done) >= 8


@pytest.mark.slow
def test_the_readme_leads_from_the_clone_to_a_handled_message(tmp_path: Path) -> None:
    first, second, *_ = [block for block in blocks(ROOT / "README.md") if block.kind == "sh"]
    with Terminal(tmp_path) as terminal:
        terminal.enter(first)
        terminal.see("verdict: every message ended as expected, and nothing was lost", "")
        terminal.enter(second, ends=False)
        terminal.see('sending: {"to": "ada"}', "")


@pytest.mark.spec("10.1")
def test_the_readme_s_program_handles_its_messages(tmp_path: Path) -> None:
    program, _ = [block.text for block in blocks(ROOT / "README.md") if block.kind == "python"]

    assert run_program(program, tmp_path).splitlines() == ["{'order': 7} 1", "{'order': 8} 1"]
    assert (tmp_path / "data").is_dir()


@pytest.mark.slow
def test_the_readme_s_worker_handles_what_its_curl_enqueues(tmp_path: Path) -> None:
    _, worker = [block for block in blocks(ROOT / "README.md") if block.kind == "python"]
    *_, curl = [block for block in blocks(ROOT / "README.md") if block.kind == "sh"]
    with Terminal(tmp_path) as terminal:
        terminal.enter(Block("sh", ". .venv/bin/activate; holdfast serve --data ./served &"))
        terminal.see("Holdfast is serving", "")
        (tmp_path / "worker.py").write_text(worker.text.replace("7077", str(terminal.port)))
        terminal.enter(Block("sh", "python worker.py &"))
        terminal.enter(curl)
        terminal.see("to grace attempt 1", "")


def run_program(program: str, cwd: Path) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coming-from-celery.md", "coming-from-sqs.md"])
def test_the_programs_side_by_side_are_programs_and_ours_run(name: str, tmp_path: Path) -> None:
    programs = [block.text for block in blocks(DOCS / name) if block.kind == "python"]
    for program in programs:
        compile(program, name, "exec")
    ours = [program for program in programs if "import holdfast" in program]
    assert len(ours) >= 3
    with Served("--data", tmp_path / "data") as served:
        # The dead letters that one of them brings back are of a queue that is there.
        make_queue = "import holdfast; holdfast.open({!r}).queue('orders', tenant='acme').set_policy(max_retries=5)"
        run_program(make_queue.format(served.url), tmp_path)
        for program in ours:
            # A worker that begins is as good as one that runs: it has nothing to do here.
            text = program.replace("http://localhost:7077", served.url).replace(
                "worker.run()", "assert worker.handlers"
            )
            run_program(text, tmp_path)


# --- What pages name -----------------------------------------------------------------------------------------------


def test_every_promise_names_tests_that_exist_and_its_loss_window() -> None:
    page = (DOCS / "guarantees.md").read_text()
    promises = re.split(r"^### ", page, flags=re.MULTILINE)[1:]

    assert len(promises) >= 20
    for promise in promises:
        title = promise.splitlines()[0]
        assert "\nLoss window: " in promise, title
        proofs = re.findall(r"\[`([\w/.]+)::(\w+)`\]\(\.\./([\w/.]+)\)", promise)
        assert proofs, title
        for path, name, target in proofs:
            assert path == target, title
            assert re.search(rf"def {name}\(", (ROOT / path).read_text()), f"{title}: {path}::{name}"
    named = re.findall(r"`(tests/[\w/.]+)`", page)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_laws_run_over_every_store_that_the_page_names() -> None:
    for path in ("memory/test_laws.py", "rocks/test_laws.py", "test_http_laws.py"):
        assert "(StoreLaws)" in (ROOT / "tests" / "stores" / path).read_text()


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [each for each in re.findall(r"\]\(([^)\s]+)\)", text) if not each.startswith(("http:", "https:"))]

    assert [each for each in targets if not (page.parent / each.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in MINE], ids=lambda page: page.name)
def test_no_page_praises(page: Path) -> None:
    words = re.findall(r"\b(fast|simple|simply|robust|easy|easily|powerful|seamless\w*|blazing\w*)\b", page.read_text())

    assert words == []


def test_the_first_command_of_the_readme_is_on_the_first_screen() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()

    assert next(number for number, line in enumerate(lines) if line.startswith("make demo")) < 24
