"""The Makefile: what each target installs, and the message about what could not be installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone as far as `make -n` looks at it, with an interpreter in its .venv."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    return tmp_path


def planned(clone: Path, target: str) -> str:
    """Return the commands that the target would run."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    return subprocess.run(
        ["make", "-n", target], cwd=clone, env=variables, capture_output=True, text=True, check=True
    ).stdout


def test_the_demo_installs_the_package_alone(clone: Path) -> None:
    commands = planned(clone, "demo")

    assert "pip install -qq --disable-pip-version-check -e '.';" in commands
    assert "[dev]" not in commands
    assert "tests.services" not in commands
    assert commands.rstrip().endswith(".venv/bin/holdfast demo")


def test_the_demo_installs_nothing_after_setup(clone: Path) -> None:
    for stamp in (".base-ready", ".ready"):  # as `make setup` leaves them
        (clone / ".venv" / stamp).touch()

    assert planned(clone, "demo").split() == [".venv/bin/holdfast", "demo"]


@pytest.mark.parametrize("target", ["setup", "test", "check", "proof"])
def test_setup_installs_everything_after_a_demo(clone: Path, target: str) -> None:
    (clone / ".venv/.base-ready").touch()

    commands = planned(clone, target)

    assert "-e '.[dev]'" in commands
    assert "-m tests.services" in commands
    # The fast tests need no database, and nothing from npm.
    assert ("-m tests.services cc" in commands) == (target == "check")


@pytest.mark.slow
def test_what_cannot_be_installed_for_the_tests_is_named_for_each_system(tmp_path: Path) -> None:
    """On a machine without apt-get, and with an index that has none of the wheels."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "nothing").mkdir()
    shutil.copy(ROOT / "tests/services.py", tmp_path / "tests/services.py")
    environment = {"PATH": str(tmp_path / "nothing"), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}

    ran = subprocess.run(
        [sys.executable, "-m", "tests.services"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    [debian] = [line for line in ran.stderr.splitlines() if "sudo apt-get install" in line]
    [fedora] = [line for line in ran.stderr.splitlines() if "sudo dnf install" in line]
    [macos] = [line for line in ran.stderr.splitlines() if "brew install" in line]
    assert "redis-server nodejs npm gcc libc6-dev" in debian
    assert "redis nodejs-npm gcc" in fedora
    assert "brew install redis && brew install node && xcode-select --install" in macos
