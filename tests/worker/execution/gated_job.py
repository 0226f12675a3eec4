"""A module whose import in a child waits until a file exists, and a handler that may wait for another file."""

import multiprocessing
import os
import time
from pathlib import Path

GATE = "HOLDFAST_TEST_GATE"


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


if multiprocessing.parent_process() is not None:
    wait_for(Path(os.environ[GATE]))
    Path(f"{os.environ[GATE]}.passed").touch()


def work(wait_for_path: str) -> None:
    if wait_for_path:
        Path(f"{wait_for_path}.begun").touch()
        wait_for(Path(wait_for_path))
