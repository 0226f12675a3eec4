"""Environments that hold the built wheel, its dependencies and one extra, and nothing else.

The dependencies are not downloaded again. They are linked, file by file, from the environment that runs the tests, so
that twelve environments cost seconds, while a distribution that the extra does not require cannot be imported.
"""

import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# `dev` is for working on Holdfast: it holds all the others.
EXTRAS = sorted(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys() - {"dev"}
)


PROBE = Path(__file__).with_name("probe.py")
PATIENCE_S = 300

WORKER = """
import holdfast

worker = holdfast.Worker("./data")


@worker.handler("jobs")
async def handle(payload: int) -> None:
    worker.stop()
"""
END_PARENT = "#!/bin/sh\nkill -TERM $PPID\n"


def install_wheel(directory: Path) -> Distribution:
    """Build the wheel as a release is built, and install it alone, with pip, into `directory`."""
    built, installed = directory / "built", directory / "installed"
    build = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
    [wheel] = built.glob("*.whl")
    install = ["-m", "pip", "-qq", "install", "--no-deps", "--no-index", "--target", str(installed), str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    [info] = installed.glob("holdfast-*.dist-info")
    return PathDistribution(info)


class Environment:
    """An environment of the wheel, and a directory in which its programs run."""

    def __init__(self, directory: Path, wheel: Distribution, extra: str | None) -> None:
        self.extra = extra
        self.python = _make_environment(directory / "environment", wheel, extra)
        self.place = directory / "place"
        (self.place / "full").mkdir(parents=True)
        (self.place / "full/note.txt").write_text("not empty")
        (self.place / "jobs.py").write_text(WORKER)
        (self.place / "end-parent").write_text(END_PARENT)
        (self.place / "end-parent").chmod(0o755)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
        self.variables = {**own, "HOLDFAST_URL": str(self.place / "data"), "TMPDIR": str(self.place)}

    def ask(self, what: str, asked: Any) -> Any:
        """Ask the probe, run by this environment's interpreter."""
        ran = subprocess.run(
            [str(self.python), "-I", str(PROBE), what],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            cwd=self.place,
            env=self.variables,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)


def _make_environment(directory: Path, holdfast: Distribution, extra: str | None) -> Path:
    """Make a virtual environment with Holdfast, its dependencies and those of `extra`; return its interpreter."""
    venv.EnvBuilder(symlinks=True).create(directory)
    [site] = directory.glob("lib/python*/site-packages")
    for each in (holdfast, *_closure(holdfast, extra)):
        _link(each, site)
    return directory / "bin/python"


def _closure(holdfast: Distribution, extra: str | None) -> list[Distribution]:
    """Return the distributions that pip would install with `holdfast[extra]`, without Holdfast itself."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = list(_requirements(holdfast, "" if extra is None else extra))
    while waiting:
        requirement = waiting.pop()
        try:
            each = distribution(requirement.name)
        except PackageNotFoundError:
            raise RuntimeError(f"the tests' environment lacks {requirement}: run `make setup`") from None
        found[each.name] = each
        # Without an extra too: the requirements of `a[b]` are those of `a` and those of `b`.
        for wanted in ("", *requirement.extras):
            if (each.name, wanted) not in seen:
                seen.add((each.name, wanted))
                waiting += _requirements(each, wanted)
    return list(found.values())


def _requirements(of: Distribution, extra: str) -> Iterator[Requirement]:
    for line in of.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _link(installed: Distribution, site: Path) -> None:
    """Link every file of the distribution into `site`: a folder may be shared by several distributions."""
    for each in installed.files or ():
        if each.parts[0] == "..":  # a program in bin/
            continue
        link = site / each
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(Path(str(each.locate())).resolve())
