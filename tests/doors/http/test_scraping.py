"""Prometheus reads the metrics of a server that asks everybody else who they are."""

import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from holdfast.server.doors.listen import make_tls
from holdfast.server.kinds import Secret
from holdfast.server.settings import Settings
from tests.doors.credentials import Authority, write_pair
from tests.server.served import Served

JWT_SECRET = "a secret of at least thirty-two bytes"
TOKEN = "canary-0123456789-canary"


def signed(tenant: str, scope: str) -> str:
    claims = {"tenant": tenant, "scope": scope, "aud": "holdfast", "exp": 1 << 33}
    return jwt.encode(claims, JWT_SECRET, "HS256")


def serve(**settings: str) -> Served:
    environment = {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()}
    return Served("--store", "memory://", environment={"HOLDFAST_JWT_SECRET": JWT_SECRET, **environment})


async def ask(server: Served, path: str, credential: str | None = None, method: str = "GET") -> tuple[int, Any]:
    headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
    async with aiohttp.request(method, server.url + path, headers=headers) as answer:
        body = await answer.text()
        return answer.status, json.loads(body) if answer.content_type == "application/json" else body


async def test_the_metrics_token_scrapes_and_opens_nothing_else() -> None:
    with serve(metrics_token=TOKEN) as server:
        status, text = await ask(server, "/metrics", TOKEN)
        assert status == 200
        assert "holdfast_build_info" in text
        for path, method in (
            ("/v1/tenants", "GET"),
            ("/v1/journal", "GET"),
            ("/v1/queue/enqueue", "POST"),
            ("/v1/queue/dequeue", "POST"),
        ):
            assert (await ask(server, path, TOKEN, method))[0] == 401, path

        for wrong in (None, TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "x"):
            status, answer = await ask(server, "/metrics", wrong)
            assert (status, answer["error"]["code"]) == (401, "unauthenticated")
            assert "metrics_token" in answer["error"]["message"]
        assert (await ask(server, "/metrics", signed("*", "read")))[0] == 200
        assert (await ask(server, "/metrics", signed("acme", "admin")))[0] == 403
        assert (await ask(server, "/metrics", TOKEN))[0] == 200
        server.signal()
        assert server.end() == 0

    assert "canary" not in server.log
    refusals = [each for each in map(json.loads, server.log.splitlines()) if each["event"] == "metrics_scrape_refused"]
    # Two episodes: five scrapes with a wrong token, and one with a tenant's.
    assert [(each["level"], each["reason"]) for each in refusals] == [("warning", "missing"), ("warning", "forbidden")]
    assert all("metrics_token" in each["hint"] for each in refusals)


async def test_public_metrics_are_for_anyone_and_nothing_else_is() -> None:
    with serve(metrics_public="true") as server:
        for credential in (None, "not a token", signed("acme", "read")):
            assert (await ask(server, "/metrics", credential))[0] == 200
        assert (await ask(server, "/v1/tenants"))[0] == 401


async def test_without_either_setting_only_an_operator_scrapes() -> None:
    with serve() as server:
        assert (await ask(server, "/metrics"))[0] == 401
        assert (await ask(server, "/healthz"))[0] == 200, "by this a probe tells a refused scrape from a dead server"
        assert (await ask(server, "/metrics", signed("*", "read")))[0] == 200


@pytest.mark.parametrize(
    ("scrapers", "mode"),
    [
        ({}, ssl.CERT_REQUIRED),
        ({"metrics_token": Secret(TOKEN)}, ssl.CERT_OPTIONAL),
        ({"metrics_public": True}, ssl.CERT_OPTIONAL),
    ],
)
def test_a_scraper_needs_no_client_certificate(tmp_path: Path, scrapers: dict[str, Any], mode: ssl.VerifyMode) -> None:
    authority = Authority()
    certificate, key = write_pair(tmp_path, "server", authority.issue_server())
    tls = make_tls(
        Settings(
            tls_cert=certificate, tls_key=key, tls_client_ca=certificate, mtls_tenants={"a.example": "acme"}, **scrapers
        )
    )
    assert tls is not None
    assert tls.verify_mode == mode
