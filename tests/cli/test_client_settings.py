"""Client commands find their queues in the specified order of settings."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from holdfast.cli.client_settings import DEFAULT_URL, ClientTarget, resolve_target
from holdfast.cli.failures import Usage
from holdfast.cli.server import doctor as doctor_module
from tests.server.served import urls_in

Run = Callable[..., Any]

SECRET = "0123456789" * 4


def find(environment: dict[str, str] | None = None, config: Path | None = None, **flags: str) -> ClientTarget:
    return resolve_target(flags, environment or {}, None if config is None else str(config))


def token_of(**claims: str) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


def test_nothing_given_is_the_server_of_this_machine() -> None:
    place = find()

    assert (place.url, place.token, place.tenant) == (DEFAULT_URL, None, "default")
    assert place.origin("url") == "default"


@pytest.mark.spec("10.6")
def test_flags_come_before_variables_and_those_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "h.toml"
    file.write_text('port = 1\n[client]\nurl = "http://file:1"\ntoken = "file"\ntenant = "file"\n')
    variables = {"HOLDFAST_URL": "http://variable:1", "HOLDFAST_TOKEN": "variable"}

    place = find(variables, file, url="http://flag:1")

    assert (place.url, place.token, place.tenant) == ("http://flag:1", "variable", "file")
    assert place.origin("url") == "flag --url"
    assert place.origin("token") == "variable HOLDFAST_TOKEN"
    assert place.origin("tenant") == f"key client.tenant in {file}"
    assert find({"HOLDFAST_CONFIG": str(file)}).url == "http://file:1"


def test_the_tenant_left_out_is_the_tokens_own() -> None:
    assert find(token=token_of(tenant="acme")).tenant == "acme"
    assert find(token=token_of(tenant="acme"), tenant="other").tenant == "other"
    assert find(token=token_of(tenant="*")).tenant == "default"
    assert find(token="not.a.token").tenant == "default"
    assert find(token="opaque").tenant == "default"


def test_a_store_is_opened_with_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "h.toml"
    file.write_text('journal_retention = "1h"\nport = 99\n')

    place = find({"HOLDFAST_DURABILITY": "os", "HOLDFAST_PORT": "tcp://10.0.0.1:7077"}, file, url="./data")

    assert place.store == {"durability": "os", "journal_retention": "3600000ms"}


@pytest.mark.parametrize(
    ("environment", "text", "flags", "word"),
    [
        ({}, "", {"url": ""}, "url (flag --url) is empty"),
        ({"HOLDFAST_TENANT": ""}, "", {}, "tenant (variable HOLDFAST_TENANT) is empty"),
        ({}, "", {"url": "localhost:7077"}, "http://localhost:7077"),
        ({}, "", {"url": ":7077"}, "http://localhost:7077"),
        ({}, "", {"url": "http//host"}, "url (flag --url): 'http//host' looks like a host or a URL: write http://host"),
        ({"HOLDFAST_URL": "htp://host"}, "", {}, "url (variable HOLDFAST_URL): htp:// is not a scheme"),
        ({}, "[client]\nurll = 'x'", {}, "'urll'"),
        ({}, "[client]\nurl = 7", {}, "client.url"),
        ({}, "client = 7", {}, "not a table"),
        ({}, "not toml", {}, "is not TOML"),
        ({"HOLDFAST_DURABILITY": "none"}, "", {"url": "./data"}, "variable HOLDFAST_DURABILITY"),
    ],
)
def test_what_is_wrong_is_usage_by_its_name_and_place(
    tmp_path: Path, environment: dict[str, str], text: str, flags: dict[str, str], word: str
) -> None:
    (tmp_path / "h.toml").write_text(text)

    with pytest.raises(Usage, match=r".") as refused:
        find(environment, tmp_path / "h.toml", **flags)
    assert word in str(refused.value)


def test_an_empty_token_is_none() -> None:
    assert find({"HOLDFAST_TOKEN": ""}).token is None


def test_a_tokens_text_is_in_no_repr() -> None:
    assert "secret" not in repr(find(token="secret"))


@pytest.mark.usefixtures("alone")
def test_a_directory_that_is_not_there_is_not_made_by_a_look(run: Run, tmp_path: Path) -> None:
    ran = run("stats", "jobs", "--url", "./typo")

    assert ran.code == 3
    assert "there is no store at ./typo" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("alone")
def test_a_server_that_is_not_there_is_exit_code_75(run: Run, free_port: int) -> None:
    ran = run("enqueue", "jobs", "x", "--url", f"http://127.0.0.1:{free_port}")

    assert ran.code == 75
    assert ran.err.count("\n") == 1
    assert "holdfast serve" in ran.err


@pytest.mark.usefixtures("alone")
def test_the_server_leaves_the_clients_table_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "h.toml").write_text('port = 7079\n[client]\nurl = "http://127.0.0.1:7079"\n')

    ran = run("serve", "--config", "h.toml", "--print-settings")

    assert ran.code == 0
    assert "port = 7079" in ran.out


@pytest.fixture
def guarded(alone: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """A server that asks who calls; makes tokens of a tenant and its scopes."""
    program = [sys.executable, "-u", "-m", "holdfast", "serve", "--store", "memory://", "--port", "0"]
    environment = {**os.environ, "HOLDFAST_JWT_SECRET": SECRET}
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as serving:
        try:
            assert serving.stdout is not None
            monkeypatch.setenv("HOLDFAST_URL", urls_in(serving.stdout.readline())["url"])
            yield lambda tenant, scope: jwt.encode(
                {"tenant": tenant, "scope": scope, "aud": "holdfast", "exp": 1 << 33, "sub": "me"}, SECRET, "HS256"
            )
        finally:
            serving.terminate()


def test_a_tenants_token_finds_its_own_queues_everywhere(
    run: Run, guarded: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("queues").code == 4
    assert "HOLDFAST_TOKEN" in run("queues").err
    monkeypatch.setenv("HOLDFAST_TOKEN", guarded("acme", "read write"))

    assert run("enqueue", "jobs", "x").code == 0
    assert run("queues", "-q").out == "jobs\n"
    assert run("top", "--once", "-i", 0.1, "-q").out == "acme/jobs\n"
    assert run("tail", "--no-follow", "--json").json["tenant"] == "acme"
    assert run("doctor", "-q").code == 0
    assert run("dequeue", "jobs", "--json").json["tenant"] == "acme"
    for arguments in (
        ("enqueue", "other/jobs", "x"),
        ("policy", "jobs", "lease=1s"),
        ("run", "other/jobs", "--", "true"),
    ):
        assert run(*arguments).code == 4, arguments


def test_doctor_with_an_operators_token_looks_at_every_tenant(
    run: Run, guarded: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", guarded("*", "admin"))
    run("enqueue", "acme/a", "x", "--max-retries", 0)
    run("enqueue", "other/b", "x")
    receipt = run("dequeue", "acme/a", "--json").json["receipt"]
    run("nack", receipt, "--queue", "acme/a", "--error", "boom")

    def found(*arguments: str) -> dict[str, str]:
        ran = run("doctor", "--json", *arguments)
        assert ran.code == 0, ran
        return {each["check"]: each["found"] for each in ran.lines}

    every = found()
    assert every["access"] == "2 queues of 2 tenants are visible"
    assert every["dead letters"] == "1 failed messages, most in acme/a"
    one = found("--tenant", "other")
    assert one["access"] == "1 queues of tenant other are visible"
    assert "dead letters" not in one
    monkeypatch.setattr(doctor_module, "_MAX_TENANTS", 1)
    assert found()["tenants"] == "checked the first 1 of 2"
    monkeypatch.setenv("HOLDFAST_TOKEN", guarded("other", "read"))
    assert found()["access"] == "1 queues of tenant other are visible"


def test_an_operators_token_sees_every_tenant(
    run: Run, guarded: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", guarded("*", "admin"))
    run("enqueue", "acme/a", "x")
    run("enqueue", "b", "x")

    assert run("top", "--once", "-i", 0.1, "-q").out == "acme/a\ndefault/b\n"
    assert {each["tenant"] for each in run("tail", "--no-follow", "--json").lines} == {"acme", "default"}
    assert set(run("tenants", "-q").out.split()) == {"acme", "default"}


@pytest.mark.parametrize(
    ("url", "is_server", "is_remote"),
    [
        ("http://host:7077", True, True),
        ("holdfast://host:7078", False, True),
        ("HOLDFASTS://host:7078", False, True),
        ("capnp://host:7078", False, True),
        ("memory://", False, False),
        ("./data", False, False),
    ],
)
def test_a_server_is_told_from_a_store_by_the_url(url: str, is_server: bool, is_remote: bool) -> None:
    place = find(url=url)
    assert (place.is_server, place.is_remote) == (is_server, is_remote)
