"""The cluster in deploy/: every setting it names exists, its parts fit together, and its commands run."""

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer
import yaml

from holdfast.cli.main import app
from holdfast.server.checks import check_startable
from holdfast.server.settings import SETTINGS
from holdfast.server.sources import load_settings
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer
from tests.server.served import Served

ROOT = Path(__file__).parents[2]
GIVEN = {"POSTGRES_PASSWORD": "p4ssword", "HOLDFAST_JWT_SECRET": "0123456789abcdef0123456789abcdef"}
TEXT = (ROOT / "deploy" / "compose.yaml").read_text()
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def substituted(text: str) -> str:
    """Fill in variables as compose does. Variables with `:?` are required."""
    asked_for = set(re.findall(r"\$\{(\w+):\?", text))
    assert asked_for == set(GIVEN) == set(re.findall(r"\$\{(\w+)", text))
    return re.sub(r"\$\{(\w+)(?::\?[^}]*)?\}", lambda found: GIVEN[found[1]], text)


CLUSTER: dict[str, Any] = yaml.safe_load(substituted(TEXT))
SERVICES: dict[str, dict[str, Any]] = CLUSTER["services"]
SERVERS = {name: each for name, each in SERVICES.items() if each.get("command") == ["serve"]}
DATABASES = {name: each for name, each in SERVICES.items() if each.get("image", "").startswith("postgres:")}


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return the mount point of each volume of a service."""
    return dict(each.split(":") for each in service.get("volumes", []))


@pytest.mark.spec("10.9")
def test_there_are_two_servers_two_databases_and_one_redis() -> None:
    assert set(SERVICES) == {*SERVERS, *DATABASES, "migrate", "redis"}
    assert (len(SERVERS), len(DATABASES)) == (2, 2)


@pytest.mark.spec("10.9")
@pytest.mark.parametrize("name", [*SERVERS, "migrate"])
def test_every_variable_is_a_setting_with_a_value_it_takes(name: str) -> None:
    environment = SERVICES[name]["environment"]
    variables = {setting.variable for setting in SETTINGS.values()}
    assert set(environment) <= variables
    load_settings({}, environment)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_can_start_with_its_settings(name: str) -> None:
    loaded = load_settings({}, SERVERS[name]["environment"])
    check_startable(loaded)
    assert not loaded.warnings
    assert loaded.settings.has_tokens, "else it would listen on loopback alone"
    assert loaded.settings.host == "0.0.0.0"


@pytest.mark.parametrize("name", SERVERS)
def test_ports_and_volumes_are_those_of_the_settings(name: str) -> None:
    server, settings = SERVERS[name], load_settings({}, SERVERS[name]["environment"]).settings
    [port] = server["ports"]
    assert int(port.split(":")[1]) == settings.port
    assert f"EXPOSE {settings.port}\n" in DOCKERFILE
    assert f":{settings.port}/readyz" in server["healthcheck"]["test"][-1]
    [place] = mounts(server).values()
    assert Path(place) in Path(str(settings.wal_dir)).parents
    assert f"VOLUME {place}\n" in DOCKERFILE
    assert int(server["stop_grace_period"].removesuffix("s")) * 1_000 > settings.shutdown_grace_ms


def test_nobody_shares_a_volume_or_a_port_and_every_volume_is_used() -> None:
    used = [volume for service in SERVICES.values() for volume in mounts(service)]
    assert sorted(used) == sorted(CLUSTER["volumes"])
    ports = [port.split(":")[0] for server in SERVERS.values() for port in server["ports"]]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("name", [*SERVERS, "migrate"])
def test_the_store_is_the_databases_and_redis_the_redis(name: str) -> None:
    environment = SERVICES[name]["environment"]
    found = re.findall(r"postgres://(\w+):(\w+)@([\w-]+):5432/(\w+)", environment["HOLDFAST_STORE"])
    assert [host for _, _, host, _ in found] == list(DATABASES)
    for user, password, host, database in found:
        given = DATABASES[host]["environment"]
        assert (user, password, database) == (
            *(given["POSTGRES_USER"], given["POSTGRES_PASSWORD"]),
            given["POSTGRES_DB"],
        )
    if name in SERVERS:
        assert re.fullmatch(r"redis://redis:6379/\d", environment["HOLDFAST_REDIS_URL"])


def test_who_waits_for_whom_can_come_to_an_end() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            match how["condition"]:
                case "service_healthy":
                    assert "healthcheck" in SERVICES[other]
                case "service_completed_successfully":
                    assert SERVICES[other]["restart"] in ("no", "on-failure")
                case unknown:
                    raise AssertionError(unknown)
    for server in SERVERS.values():
        assert set(server["depends_on"]) == {"migrate", "redis"}
    assert set(SERVICES["migrate"]["depends_on"]) == set(DATABASES)


@pytest.mark.parametrize("name", [*SERVERS, "migrate"])
def test_a_command_is_one_of_the_command_line(name: str) -> None:
    parsed = typer.main.get_command(app)
    *groups, last = SERVICES[name]["command"]
    for word in (*groups, last):
        parsed = parsed.commands[word]
    with parsed.make_context(last, []):
        pass


def test_the_image_is_built_of_what_there_is_and_runs_as_a_user_of_its_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    assert set(extras.split(",")) == {"server", "postgres", "redis"} <= set(project["optional-dependencies"])
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for each in copied.split():
            assert (ROOT / each).exists()
            assert f"!{each}" in ignored
    assert project["readme"] in DOCKERFILE
    assert all(each in DOCKERFILE for each in project["license-files"])
    user, command = DOCKERFILE.index("USER 10001"), DOCKERFILE.index('ENTRYPOINT ["holdfast"]')
    assert user < command
    assert "USER" not in DOCKERFILE[command:]
    assert "holdfast" in project["scripts"]
    for service in (*SERVERS.values(), SERVICES["migrate"]):
        context = (ROOT / "deploy" / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).samefile(ROOT / "deploy" / "Dockerfile")


def migrate_with(places: dict[str, str]) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *SERVICES["migrate"]["command"]],
        env={**own, **SERVICES["migrate"]["environment"], **places},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.spec("10.9")
@pytest.mark.slow
async def test_its_commands_make_the_store_and_serve_it(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """With the services of the tests in the places of the containers."""
    names = [f"compose_{number}" for number in range(len(DATABASES))]

    async def make() -> None:
        admin = await asyncpg.connect(postgres.url("postgres"))
        for name in names:
            await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            await admin.execute(f'CREATE DATABASE "{name}"')
        await admin.close()

    await make()
    places = {
        "HOLDFAST_STORE": ",".join(map(postgres.url, names)),
        "HOLDFAST_REDIS_URL": redis_server.url,
        "HOLDFAST_WAL_DIR": str(tmp_path),
        "HOLDFAST_HOST": "127.0.0.1",
    }
    made = await asyncio.to_thread(migrate_with, {"HOLDFAST_STORE": places["HOLDFAST_STORE"]})
    assert made.returncode == 0, made.stderr
    [server, *_] = SERVERS.values()
    environment = {**server["environment"], **places}
    del environment["HOLDFAST_PORT"]
    with Served(environment=environment) as served:
        assert (await served.get("/readyz")).status == 200
        assert (await served.call("/v1/queue/enqueue", {"messages": []})).status == 401
