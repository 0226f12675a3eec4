"""schemathesis over the running server: no 5xx, and every answer is documented."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from tests.doors.serving import Server, serve

ROOT = Path(__file__).parents[3]
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
]
# An endless answer: test_admin.py has it.
ENDLESS = "/v1/queue/watch"


@contextmanager
def served(store: str) -> Iterator[Server]:
    """Run the fuzzer, a separate program, from a thread."""
    started: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Server]]
    is_started = threading.Event()

    async def run() -> None:
        nonlocal started
        async with serve(SystemClock(), store=store, durability="os") as server:
            stop = asyncio.Event()
            started = asyncio.get_running_loop().create_future()
            started.set_result((asyncio.get_running_loop(), stop, server))
            is_started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert is_started.wait(30)
    loop, stop, server = started.result()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


def fuzz(store: str, directory: Path, *options: str) -> None:
    with served(store) as server:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--exclude-path", ENDLESS, "--request-timeout", "20"),
            *("--warnings", "off", "--suppress-health-check", "all", *options),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SCHEMATHESIS_HOOKS": "tests.doors.hostile.fuzz_hooks",
            "NO_COLOR": "1",
        }
        ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=3_000)
        assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
        assert " passed" in ran.stdout
        assert not [each for each in server.requests.seen if each[2] == "internal"]


@pytest.mark.slow
def test_the_edges_of_every_field_find_no_failure(tmp_path: Path) -> None:
    fuzz("memory://", tmp_path, "--phases", "coverage", "--seed", "1")


@pytest.mark.spec("8.1")
@pytest.mark.slow
def test_random_calls_find_no_failure(tmp_path: Path) -> None:
    options = ("--phases", "fuzzing,stateful", "--max-examples", "10", "--seed", "2")
    fuzz(str(tmp_path / "data"), tmp_path, *options)


@pytest.mark.proof
@pytest.mark.parametrize("store", ["memory", "rocks"])
def test_many_random_calls_find_no_failure(store: str, tmp_path: Path) -> None:
    scale = float(os.environ.get("HOLDFAST_PROOF_SCALE", "1"))
    url = "memory://" if store == "memory" else str(tmp_path / "data")
    fuzz(url, tmp_path, "--max-examples", str(max(1, int(200 * scale))))
