"""The examples run as they stand, and say what they should."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.served import Served

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

# What each prints, among other things, in this order.
EMBEDDED = {
    "embedded.py": ["charging order 7, attempt 1", "charging order 9", "ready 0, in flight 0, failed 0"],
    "async_program.py": ["fetched 20 pages"],
    "typed_worker.py": ["charged order 8: 990 cents, attempt 2", "dead letter: bad payload: the payload is not Order"],
    "worker.py": ["charged order 8 on attempt 2", "shipped order 8"],
    "handler_test.py": ["passed"],
    "periodic.py": ["tick: {'kind': 'heartbeat'}", "tick: {'kind': 'heartbeat'}", "schedule: heartbeat"],
    "resume.py": ["attempt 1 begins at chunk 0", "at 60 %", "attempt 2 begins at chunk 3", "converted on attempt 2"],
    "idempotent_producer.py": ["enqueued 3, known already 0", "enqueued 2, known already 3", "ready: 3"],
    "dead_letters.py": ["brought back 1", "removed 1", "sent to ada@example.org", "sent to grace@example.org"],
    "priority_and_delay.py": ["['urgent', 'ordinary', 'some day']", "['urgent, but not yet']", "['withdraw 10']"],
}
OVER_HTTP = {
    "http_requests.py": ["claimed {'to': 'grace'}", "True", "ready", "queue_message_lease_mismatch", "True"],
    "shell_worker.sh": ["resizing", "by hand: ", "owl.png", "acked"],
}


def run(example: str, cwd: Path, **environment: str) -> str:
    path = EXAMPLES / example
    finished = subprocess.run(
        [sys.executable, str(path)] if path.suffix == ".py" else ["sh", str(path)],
        cwd=cwd,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def assert_in_order(texts: list[str], out: str) -> None:
    assert re.search(".*".join(map(re.escape, texts)), out, re.DOTALL), out


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with Served("--data", tmp_path / "data") as served:
        yield served.url


@pytest.mark.parametrize(("example", "texts"), EMBEDDED.items(), ids=EMBEDDED.keys())
def test_an_example_runs(example: str, texts: list[str], tmp_path: Path) -> None:
    assert_in_order(texts, run(example, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("example", "texts"), OVER_HTTP.items(), ids=OVER_HTTP.keys())
def test_an_example_that_needs_a_server_runs(example: str, texts: list[str], tmp_path: Path, url: str) -> None:
    assert_in_order(texts, run(example, tmp_path, HOLDFAST_URL=url))


def test_every_example_runs_here_is_listed_and_is_short() -> None:
    programs = {each.name: each.read_text() for each in EXAMPLES.iterdir() if each.suffix in (".py", ".sh")}
    listed = re.findall(r"\]\((.*?)\)", (EXAMPLES / "README.md").read_text())

    assert set(programs) == {*EMBEDDED, *OVER_HTTP} == set(listed)
    assert [name for name, text in programs.items() if len(text.splitlines()) > 60] == []
