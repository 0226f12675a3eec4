"""The modules that the program imports when it starts. Modules are counted, because times would differ by machine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = {
    "holdfast",
    *("holdfast.client", "holdfast.client.tracebacks"),
    *("holdfast.model", "holdfast.model.errors", "holdfast.model.parsing", "holdfast.model.parsing.store_url"),
}
COMMAND_LINE = PACKAGE | {
    *("holdfast.cli", "holdfast.cli.main", "holdfast.cli.loading", "holdfast.cli.commands", "holdfast.cli.root_help"),
    *("holdfast.cli.session", "holdfast.cli.arguments", "holdfast.cli.failures", "holdfast.cli.client_settings"),
    *("holdfast.cli.output", "holdfast.clock"),
    *("holdfast.model.parsing.checks", "holdfast.model.extras", "holdfast.model.names"),
}
# typer with what it needs, and msgspec with what it needs.
LIBRARIES = {"typer", "annotated_doc", "shellingham", "msgspec", "typing_extensions"}
CLIENT_FOLDERS = {"cli", "client", "clock", "dice", "forking", "model", "runtime", "signals", "telemetry", "wire"}
# Modules that no client command may import, whether its queues are on a server or in an embedded store.
NEVER_IMPORTED = {
    *("pydantic", "pydantic_core", "rich", "markdown_it", "pygments", "pytest", "hypothesis"),
    *("pyspark", "pandas", "numpy", "pyarrow", "deltalake", "pyiceberg"),
    *("uvicorn", "uvloop", "starlette", "multipart", "structlog", "prometheus_client", "opentelemetry"),
    *("cryptography", "jwt", "capnp", "asyncpg", "redis", "obstore", "cronsim"),
    *("holdfast.doors", "holdfast.worker", "holdfast.pipeline", "holdfast.testing"),
    *("holdfast.server.run", "holdfast.server.http", "holdfast.server.door"),
    *("holdfast.stores.memory", "holdfast.stores.postgres", "holdfast.stores.objects", "holdfast.stores.buffered"),
}
# Modules that only an embedded store needs.
NOT_FOR_A_SERVER = {
    *("rocksdict", "sortedcontainers", "tomllib", "ctypes"),
    *("holdfast.server", "holdfast.service", "holdfast.dispatch", "holdfast.stores"),
}
CLIENT_COMMANDS = [
    ("enqueue", "mail", "hello", "--priority", "3", "--delay", "5s"),
    ("queues",),
    ("queues", "--json"),
    ("stats", "mail"),
    ("peek", "mail", "--limit", "3"),
    ("list", "mail"),
    ("dequeue", "mail", "--block", "0"),
    ("pause", "mail"),
]
# A tenth more than was counted with Python 3.11: releases of Python and of the libraries differ by a few modules.
MOST_OF_PACKAGE = 60
MOST_OF_COMMAND_LINE = 180
MOST_OF_CLIENT_COMMAND = 310


class Started(NamedTuple):
    code: int
    out: str
    modules: set[str]

    def imported(self, modules: set[str]) -> set[str]:
        """Return those of the modules and packages that were imported."""
        parents = {".".join(parts[:n]) for name in self.modules for parts in [name.split(".")] for n in range(1, 4)}
        return modules & (self.modules | parents)

    @property
    def ours(self) -> set[str]:
        return {name for name in self.modules if name.partition(".")[0] == "holdfast"}

    @property
    def libraries(self) -> set[str]:
        """The installed packages among them, ours left out."""
        top = {name.partition(".")[0] for name in self.modules}
        return {name for name in top - sys.stdlib_module_names - {"holdfast"} if _is_installed(name)}


def _is_installed(name: str) -> bool:
    return any((Path(each) / name).is_dir() or list(Path(each).glob(f"{name}.*")) for each in sys.path if each)


def start(tmp_path: Path, program: str, **variables: str) -> Started:
    """Run a program and return the modules that it has imported by its end."""
    kept = tmp_path / "modules"
    noted = (
        "import atexit, sys; before = set(sys.modules)\n"
        f"atexit.register(lambda: open({str(kept)!r}, 'w').write(' '.join(set(sys.modules) - before)))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    ran = subprocess.run(
        [sys.executable, "-c", noted + program],
        env={**environment, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return Started(ran.returncode, ran.stdout, set(kept.read_text().split()))


def run_command(tmp_path: Path, *arguments: str, **variables: str) -> Started:
    program = f"sys.argv = {['holdfast', *arguments]!r}\nfrom holdfast.cli.main import main\nmain()"
    return start(tmp_path, program, **variables)


def test_importing_the_package_imports_its_errors_alone(tmp_path: Path) -> None:
    started = start(tmp_path, "import holdfast")

    assert started.ours == PACKAGE
    assert started.libraries == set()
    assert not started.modules & {"asyncio", "ssl", "logging"}
    assert len(started.modules) <= MOST_OF_PACKAGE


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("--version",), ()], ids=" ".join)
def test_the_command_line_itself_imports_no_command(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    started = run_command(tmp_path, *arguments)

    assert (started.code, "holdfast" in started.out) == (0, True)
    assert started.ours == COMMAND_LINE
    assert started.libraries <= LIBRARIES
    assert not started.modules & {"asyncio", "ssl", "tomllib"}
    # The version is read from the installed package, by a part of Python that brings modules of its own.
    assert len(started.modules) <= MOST_OF_COMMAND_LINE + (60 if "--version" in arguments else 0)


def test_completion_of_a_command_s_name_imports_no_command(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "holdfast enq", "COMP_CWORD": "1", "_HOLDFAST_COMPLETE": "complete_bash"}

    started = run_command(tmp_path, **words)

    assert started.out.split() == ["enqueue"]
    assert started.ours == COMMAND_LINE


@pytest.mark.parametrize("command", CLIENT_COMMANDS, ids=" ".join)
def test_a_command_on_an_embedded_store_imports_that_store_only(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.delenv("HOLDFAST_DURABILITY")
    assert run_command(tmp_path, "enqueue", "mail", "hello").code == 0

    started = run_command(tmp_path, *command)

    assert started.code in (0, 3)
    assert started.imported(NEVER_IMPORTED) == set()
    # Settings are not read from files and variables if none are given.
    assert started.imported({"tomllib", "holdfast.server.sources"}) == set()


def test_a_client_command_imports_the_client_and_neither_a_server_nor_what_draws_or_validates(
    tmp_path: Path, server: str
) -> None:
    for arguments in CLIENT_COMMANDS:
        started = run_command(tmp_path, *arguments)

        assert started.code in (0, 3), arguments
        assert started.imported(NEVER_IMPORTED | NOT_FOR_A_SERVER) == set(), arguments
        assert {name.split(".")[1] for name in started.ours if "." in name} <= CLIENT_FOLDERS, arguments
        assert started.libraries <= LIBRARIES | {"httptools"}, arguments
        assert not started.modules & {"tomllib", "zoneinfo", "json"}, arguments
        assert len(started.modules) <= MOST_OF_CLIENT_COMMAND, arguments


def test_a_table_is_drawn_by_rich_where_colours_are_asked_for(tmp_path: Path, server: str) -> None:
    assert run_command(tmp_path, "enqueue", "mail", "hello").code == 0

    coloured = run_command(tmp_path, "queues", FORCE_COLOR="1")
    plain = run_command(tmp_path, "queues")

    assert "rich" in coloured.libraries
    assert "\x1b[" in coloured.out
    assert "rich" not in plain.libraries
    assert "\x1b[" not in plain.out


def test_a_server_without_identities_imports_neither_their_libraries_nor_a_store(tmp_path: Path) -> None:
    started = start(tmp_path, "import holdfast.server.run")

    unused = {"cryptography", "jwt", "pydantic", "rocksdict", "capnp", "asyncpg", "redis", "obstore", "cronsim"}
    assert not started.libraries & unused
    assert not {name for name in started.ours if name.startswith(("holdfast.stores.memory", "holdfast.stores.rocks"))}


def test_an_embedded_store_imports_no_other(tmp_path: Path) -> None:
    started = start(tmp_path, "import holdfast; holdfast.open('memory://').close()")

    stores = {name.split(".")[2] for name in started.ours if name.startswith("holdfast.stores.")}
    assert "memory" in stores
    assert not stores & {"rocks", "postgres", "objects", "buffered"}
    assert "rocksdict" not in started.libraries
