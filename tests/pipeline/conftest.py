"""One Spark session and one server for all tests here: starting either costs seconds.

Every test that uses the session is in one xdist group, so that only one process of a run starts it.
"""

import io
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.server.served import Served

_HERE = Path(__file__).parent
PATIENCE_S = 600.0

# For rows by the hundred: compiling a plan, or thinking about it again between its stages, costs more than running it.
SMALL = {
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from holdfast.pipeline.session import open_session

    session = open_session(
        "tests",
        # Three attempts at a task: a local master gives it one.
        master="local[2, 3]",
        settings={**SMALL, "spark.driver.memory": "1g"},
        is_brief=True,
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on an embedded store that lasts for the whole run: each test takes queues of its own."""
    directory = tmp_path_factory.mktemp("served")
    with Served("--data", directory, "--durability", "os", "--max-payload", "4MiB") as server:
        yield server
    shutil.rmtree(directory, ignore_errors=True)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`holdfast pipeline …` in this process, and so in its session: the exit code, what it said, what it complained."""
    from holdfast.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", "pipeline", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


_NAMES = count()


@pytest.fixture
def queue_name() -> str:
    return f"q{next(_NAMES)}"


@pytest.fixture
def hf(served: Served) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(served.url) as client:
        yield client


@pytest.fixture
def wait_until() -> Callable[..., None]:
    from time import monotonic, sleep

    def wait(is_so: Callable[[], bool]) -> None:
        """Wait for something that a query does in its own time, which on a busy machine may be minutes."""
        ends = monotonic() + PATIENCE_S
        while not is_so():
            assert monotonic() < ends, f"still waiting after {PATIENCE_S} seconds"
            sleep(0.05)

    return wait
