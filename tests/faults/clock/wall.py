"""A process that starts with the wall clock set elsewhere."""

from pathlib import Path

_SITE = """import os, time
_ns = int(os.environ["HOLDFAST_TEST_WALL_S"]) * 1_000_000_000
_time, _time_ns = time.time, time.time_ns
time.time_ns = lambda: _time_ns() + _ns
time.time = lambda: _time() + _ns / 1e9
"""


def set_wall(directory: Path, by_s: int) -> dict[str, str]:
    """The environment of a process whose wall clock is ahead by so much; behind, if negative."""
    (directory / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(directory), "HOLDFAST_TEST_WALL_S": str(by_s)}
