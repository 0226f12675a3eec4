"""The built wheel, installed bare and with each extra alone: everything works, or names the extra that it needs."""

import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from holdfast.model.extras import MODULES
from tests.wheel.calls import CALLS, Call, every_command, plain_calls
from tests.wheel.environments import EXTRAS, Environment, install_wheel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return install_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=[None, *EXTRAS], ids=lambda extra: extra or "bare")
def environment(
    request: pytest.FixtureRequest, wheel: Distribution, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The wheel with one extra, or bare."""
    return Environment(tmp_path_factory.mktemp("environment"), wheel, request.param)


@pytest.mark.spec("10.7")
def test_every_command_works_or_names_the_extra_it_needs(environment: Environment) -> None:
    calls = [*CALLS, *plain_calls()]
    here = str(environment.place).removeprefix("/")

    answers = environment.ask("call", [[part.format(here=here) for part in call.arguments] for call in calls])

    wrong = [
        f"{' '.join(call.arguments)}: exit code {code}: {err or out}"
        for call, (code, out, err) in zip(calls, answers, strict=True)
        if not is_as_promised(call, environment.extra, code, err)
    ]
    assert wrong == []


def is_as_promised(call: Call, extra: str | None, code: int, err: str) -> bool:
    if "Traceback" in err or "a bug in Holdfast" in err or code < 0:
        return False
    if not call.works_in(extra):
        return code == 2 and f"pip install 'holdfast[{call.extra}]'" in err
    return code == call.code if call.code is not None else True


@pytest.mark.spec("10.7")
def test_every_command_shows_its_help_on_the_bare_wheel(wheel: Distribution, tmp_path: Path) -> None:
    commands = [(), ("db",), ("pipeline",), *every_command()]

    answers = Environment(tmp_path, wheel, None).ask("call", [[*command, "--help"] for command in commands])

    for command, (code, out, err) in zip(commands, answers, strict=True):
        assert (code, err) == (0, ""), command
        assert " ".join(("Usage: holdfast", *command)) in " ".join(out.split())


# Calls of the library, each with the extra that it needs.
PROGRAMS = {
    "import holdfast; holdfast.open('memory://').close()": None,
    "import holdfast; holdfast.open('http://127.0.0.1:9').close()": None,
    "import holdfast; holdfast.Worker('./data').handler('mail')(print)": None,
    "from holdfast.testing import HandlerTest, ManualClock": None,
    "import holdfast; holdfast.open('postgres://127.0.0.1:9/none')": "postgres",
    "import holdfast; holdfast.open('s3://bucket/queues')": "objects",
    "import holdfast; holdfast.open('capnp://127.0.0.1:9').close()": "capnp",
    "import asyncio, holdfast; asyncio.run(holdfast.open_async('postgres://127.0.0.1:9/n').__aenter__())": "postgres",
    "import holdfast; w = holdfast.Worker('s3://bucket/queues'); w.handler('mail')(print); w.run()": "objects",
    "import pyspark_holdfast": "spark",
    "from holdfast.pipeline.session import open_session": "spark",
    "from holdfast.testing.laws import StoreLaws": "testing",
}


@pytest.mark.spec("10.7")
def test_a_program_on_the_bare_wheel_gets_the_name_of_the_missing_extra(wheel: Distribution, tmp_path: Path) -> None:
    answers = Environment(tmp_path, wheel, None).ask("run", list(PROGRAMS))

    for (program, extra), answer in zip(PROGRAMS.items(), answers, strict=True):
        if extra is None:
            assert answer == "", program
        else:
            assert answer.startswith("MissingExtra: "), program
            assert f"pip install 'holdfast[{extra}]'" in answer, program


def test_the_server_extra_serves_a_bare_client(wheel: Distribution, tmp_path: Path) -> None:
    server = Environment(tmp_path / "server", wheel, "server")
    client = Environment(tmp_path / "client", wheel, None)
    serve = [str(server.python), "-I", "-u", "-m", "holdfast", "serve", "--port", "0", "--data", "store"]
    with subprocess.Popen(
        serve, stdout=subprocess.PIPE, text=True, cwd=server.place, env=server.variables, start_new_session=True
    ) as serving:
        try:
            assert serving.stdout is not None
            [url] = re.findall(r"http://[\w.:]+", serving.stdout.readline())
            answers = client.ask("call", [["enqueue", "mail", "1", "--url", url], ["peek", "mail", "--url", url]])
        finally:
            serving.terminate()

    assert [code for code, _, _ in answers] == [0, 0], answers
    assert serving.returncode == 0


def test_the_spark_extra_archives_an_embedded_store(wheel: Distribution, tmp_path: Path) -> None:
    calls = [["enqueue", "mail", "1"], ["pipeline", "archive", "--lake", "lake", "--master", "local[1]"]]

    answers = Environment(tmp_path, wheel, "spark").ask("call", calls)

    assert [code for code, _, _ in answers] == [0, 0], answers


# The extra that each of these modules and packages needs; the longest name decides. All others need none.
NEEDS = {
    "holdfast.cli.demo.http_door": "server",
    "holdfast.cli.pipeline.segment_flush": "spark",
    "holdfast.client.capnp": "capnp",
    "holdfast.doors": "server",
    "holdfast.doors.capnp": "capnp and server",
    "holdfast.pipeline": "spark",
    "holdfast.pipeline.lake.iceberg": "iceberg and spark",
    "holdfast.server.bulk": "spark",
    "holdfast.server.doors": "server",
    "holdfast.server.ending": "server",
    "holdfast.server.processes": "server",
    "holdfast.server.store_processes": "server",
    "holdfast.server.run": "server",
    "holdfast.server.scrape": "server",
    "holdfast.service.limits.redis_rates": "redis",
    "holdfast.service.limits.shared_buckets": "redis",
    "holdfast.stores.buffered": "redis",
    "holdfast.stores.buffered.log": None,
    "holdfast.stores.objects": "objects",
    "holdfast.stores.postgres": "postgres",
    "holdfast.stores.postgres.bulk": "spark",
    "holdfast.telemetry": "server",
    "holdfast.stores.objects.journal.feed": "objects and arrow",
    "holdfast.stores.rocks.offline.backup_reader": "arrow",
    "holdfast.testing.laws": "testing",
    "holdfast.testing.machine": "testing",
    "holdfast.wire.capnp.schema": "capnp",
    "holdfast.wire.capnp.stream": "capnp",
    "pyspark_holdfast": "spark",
    "pyspark_holdfast_journal": "spark",
    "pyspark_holdfast_lake": "spark",
    "pyspark_holdfast_wal": "spark",
}


def test_every_module_is_imported_or_names_the_extra_it_needs(environment: Environment, wheel: Distribution) -> None:
    failed = environment.ask("import", list(modules_of(wheel)))

    assert {name: why for name, (why, explained) in failed.items() if explained is None} == {}
    assert {name: why for name, (why, _) in failed.items() if need_of(name) in (None, environment.extra)} == {}


def test_the_table_of_extras_names_the_modules_that_each_installs(environment: Environment) -> None:
    assert sorted(MODULES) == EXTRAS
    modules = sorted({module for each in MODULES.values() for module in each})

    found = environment.ask("find", modules)

    assert set(found) >= set(MODULES[environment.extra]) if environment.extra else found == []


def modules_of(wheel: Distribution) -> Iterator[str]:
    for file in wheel.files or ():
        if file.suffix == ".py" and file.name != "__main__.py":
            yield ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def need_of(module: str) -> str | None:
    while module and module not in NEEDS:
        module = module.rpartition(".")[0]
    return NEEDS.get(module)
