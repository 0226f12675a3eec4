"""The numbers of tenants and queues: `/v1/names`, and the log of a server (SPEC 1.3, 8.10)."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.model.names import QueueRef
from holdfast.telemetry import log
from tests.doors.serving import Api, Server, serve
from tests.postgres.server import PostgresServer


async def names(api: Api, **query: str) -> dict[str, list[str]]:
    answer = await api.get("/v1/names", **query)
    assert answer.status == 200
    return {each["tenant"]: [queue["queue"] for queue in each["queues"]] for each in answer.json["tenants"]}


@pytest.mark.spec("8.10")
async def test_an_operator_sees_every_number_and_any_other_caller_those_of_its_tenant(guarded: Server) -> None:
    operator, reader = guarded.with_token("reading-operator"), guarded.with_token("acme-reader")
    for tenant in ("acme", "other"):
        await guarded.with_token("operator").enqueue(1, tenant=tenant)
    assert await names(operator) == {"acme": ["jobs"], "other": ["jobs"]}
    assert await names(operator, tenant="other") == {"other": ["jobs"]}
    assert await names(reader) == await names(reader, tenant="acme") == {"acme": ["jobs"]}
    assert await names(reader, queue="jobs") == {"acme": ["jobs"]}
    refused = await reader.get("/v1/names", tenant="other")
    assert (refused.status, refused.code) == (403, "forbidden")
    unknown = await reader.get("/v1/names", tenant="unknown")
    assert (unknown.status, unknown.code) == (403, "forbidden")


@pytest.mark.spec("8.10")
async def test_a_name_that_is_none_is_refused(server: Server) -> None:
    for query in ({"tenant": "../x"}, {"queue": ""}, {"tenant": "acme", "queue": "a b"}):
        answer = await server.get("/v1/names", **query)
        assert (answer.status, answer.code) == (400, "invalid_name")


@pytest.mark.spec("1.3")
async def test_the_numbers_are_counted_from_one_and_kept(stored: Server) -> None:
    for tenant, queue in (("acme", "a"), ("acme", "b"), ("other", "c")):
        await stored.enqueue(1, tenant=tenant, queue=queue)
    answer = await stored.get("/v1/names")
    assert answer.json["tenants"] == [
        {"tenant": "acme", "tenant_id": 1, "queues": [{"queue": "a", "queue_id": 1}, {"queue": "b", "queue_id": 2}]},
        {"tenant": "other", "tenant_id": 2, "queues": [{"queue": "c", "queue_id": 1}]},
    ]


@pytest.fixture(params=["memory", "rocks", "shards", "objects", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """The URL and the settings of each store."""
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return postgres.make_databases("queue_numbers")[0], {}
    urls = {"memory": "memory://", "objects": f"file://{tmp_path / 'objects'}"}
    return urls.get(request.param, str(tmp_path / "data")), {"shards": 3} if request.param == "shards" else {}


@pytest.fixture
async def kept(opened: tuple[str, dict[str, Any]]) -> AsyncIterator[Server]:
    """A server over each store."""
    url, settings = opened
    async with serve(SystemClock(), store=url, durability="os", **settings) as serving:
        yield serving


@pytest.mark.spec("8.10")
async def test_every_store_knows_the_numbers_of_the_queues_that_it_uses_without_waiting(kept: Server) -> None:
    for queue in ("a", "b", "c"):
        await kept.enqueue(1, queue=queue)
        await kept.dequeue(queue=queue)
    [tenant] = (await kept.get("/v1/names")).json["tenants"]
    expected = [(tenant["tenant_id"], each["queue_id"]) for each in tenant["queues"]]
    assert [kept.core.numbers_of(QueueRef("acme", queue)) for queue in ("a", "b", "c")] == expected
    assert kept.core.numbers_of(QueueRef("acme", "unknown")) is None


@pytest.mark.spec("8.10")
async def test_a_call_that_fails_unexpectedly_is_logged_with_the_names_and_numbers_of_its_queue(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.enqueue(1)

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(server.core.store, "settle", fail)
    receipt = (await server.dequeue(lease_ms=60_000))[0]["receipt"]
    logging.getLogger().handlers.append(caplog.handler)
    try:
        with log.numbering_queues(server.core.numbers_of):
            answer = await server.post("/v1/queue/ack", {"tenant": "acme", "queue": "jobs", "receipts": [receipt]})
    finally:
        logging.getLogger().handlers.remove(caplog.handler)
    assert answer.status == 500
    [line] = {id(each): vars(each) for each in caplog.records if each.getMessage() == "call_failed"}.values()
    assert (line["tenant"], line["queue"], line["tenant_id"], line["queue_id"]) == ("acme", "jobs", 1, 1)
    assert line["correlation_id"] == answer.headers["X-Correlation-Id"]


@pytest.mark.spec("8.10")
async def test_numbers_of_a_closed_store_are_left_out_of_the_log(tmp_path: Path) -> None:
    async with serve(SystemClock(), store=str(tmp_path / "data"), durability="os") as server:
        await server.enqueue(1)
        core = server.core
    assert core.numbers_of(QueueRef("acme", "jobs")) in (None, (1, 1))
    assert core.numbers_of(QueueRef("acme", "never")) is None
