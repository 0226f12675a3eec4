"""`holdfast pipeline demo`: what a newcomer runs first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.conftest import Run


@pytest.mark.spec("9.11")
@pytest.mark.proof
def test_the_demo_ends_with_a_report_and_without_a_violation(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "pipeline", "demo", "--dir", str(tmp_path / "demo"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["faults"] == []
    assert told["audit"]["broken"] == {}
    assert told["archive"]["events"] == told["audit"]["events"] > 0
    assert "Holdfast demo" in Path(told["report"]["page"]).read_text()


def test_the_demo_asks_for_a_directory_of_its_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    code, _, err = run("demo", "--dir", tmp_path)
    assert (code != 0, "is not an empty directory" in err) == (True, True)
