"""The examples and the README's own program run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(program: Path | str, cwd: Path) -> str:
    command = [sys.executable, "-c", program] if isinstance(program, str) else [sys.executable, str(program)]
    finished = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    assert run(example, tmp_path)


def test_the_readmes_program_handles_its_messages(tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert run(program, tmp_path).splitlines() == ["{'order': 7} 1", "{'order': 8} 1"]
    assert (tmp_path / "data").is_dir()
