"""Health, figures, and what every answer carries."""

import asyncio
from pathlib import Path

import pytest

from holdfast.dice import SystemDice
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.faults import with_faults
from tests.doors.serving import Server, serve


@pytest.mark.spec("8.2")
async def test_whoever_answers_is_alive(guarded: Server) -> None:
    answer = await guarded.get("/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert answer.headers["Cache-Control"] == "no-store"
    head = await guarded.call("HEAD", "/healthz")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.spec("8.2")
async def test_a_server_with_an_open_store_is_ready(guarded: Server) -> None:
    assert (await guarded.get("/readyz")).json == {"status": "ok"}


@pytest.mark.spec("5.7")
async def test_a_server_on_its_way_out_is_alive_but_not_ready(server: Server) -> None:
    server.drain.is_draining = True
    answer = await server.get("/readyz")
    assert answer.status == 503
    assert answer.json == {"status": "unavailable", "reason": "this server is shutting down"}
    assert answer.headers["Retry-After"] == "1"
    assert (await server.get("/healthz")).status == 200


class Stopped:
    """From the moment it is set the store refuses everything, as after a commit that failed."""

    is_set = False

    async def before(self, call: str) -> None:
        if self.is_set:
            raise StoreUnavailable("the store stopped: no space left")

    async def after(self, call: str) -> None:
        """Do nothing: a call that was carried out does not fail afterwards."""


@pytest.mark.spec("8.2")
async def test_a_server_whose_store_stopped_is_not_ready(clock: ManualClock) -> None:
    stopped = Stopped()
    store = with_faults(MemoryStore(SystemDice(), journal_retention_ms=1_000), stopped)
    async with serve(clock, store=store) as server:
        assert (await server.get("/readyz")).status == 200
        stopped.is_set = True
        answer = await server.get("/readyz")
        assert (answer.status, answer.json["reason"]) == (503, "the store stopped: no space left")
        assert (await server.get("/healthz")).status == 200
        refused = await server.get("/v1/tenants")
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "store_unavailable", "1")
        stopped.is_set = False  # so that it can be closed


async def test_a_closed_store_is_not_ready(clock: ManualClock, tmp_path: Path) -> None:
    async with serve(clock, store=str(tmp_path / "data")) as server:
        await server.core.store.close()
        answer = await server.get("/readyz")
        assert answer.status == 503
        assert "closed" in answer.json["reason"]


async def test_anybody_reads_figures_where_nobody_is_asked_who_they_are(server: Server) -> None:
    answer = await server.get("/metrics")
    assert (answer.status, answer.body) == (200, b"holdfast_up 1\n")
    assert answer.headers["Content-Type"].startswith("text/plain")


@pytest.mark.spec("8.2")
async def test_figures_are_for_operators_who_may_read(guarded: Server) -> None:
    for token in ("operator", "reading-operator"):
        assert (await guarded.with_token(token).get("/metrics")).status == 200
    for token in ("acme", "acme-reader", "other"):
        answer = await guarded.with_token(token).get("/metrics")
        assert (answer.status, answer.code) == (403, "forbidden")
    assert (await guarded.get("/metrics")).status == 401


PATHS = [
    ("GET", "/healthz", 200),
    ("GET", "/readyz", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/metrics", 200),
    ("GET", "/v1/tenants", 200),
    ("GET", "/v1/journal", 200),
    ("GET", "/nowhere", 404),
    ("GET", "/v1/queue", 404),
    ("POST", "/v1/tenants/acme/queues/jobs/explode", 404),
    ("GET", "/v1/queue/enqueue", 405),
    ("POST", "/healthz", 405),
    ("PATCH", "/v1/tenants/acme", 405),
    ("OPTIONS", "/v1/queue/dequeue", 405),
    ("GET", "/v1/queue/stats", 404),
    ("POST", "/v1/queue/enqueue", 400),
]


@pytest.mark.spec("1.5")
@pytest.mark.parametrize(("method", "path", "status"), PATHS)
async def test_every_answer_has_a_correlation_id(server: Server, method: str, path: str, status: int) -> None:
    minted = await server.call(method, path)
    assert minted.status == status
    assert minted.headers["X-Correlation-Id"]
    kept = await server.call(method, path, headers={"X-Correlation-Id": " order-7 "})
    assert kept.headers["X-Correlation-Id"] == "order-7"
    hostile = await server.call(method, path, headers={"X-Correlation-Id": "a b"})
    assert hostile.headers["X-Correlation-Id"] not in ("a b", minted.headers["X-Correlation-Id"])


async def test_a_method_that_a_path_does_not_have_is_told_which_it_has(server: Server) -> None:
    answer = await server.call("POST", "/v1/tenants/acme/queues/jobs")
    assert answer.status == 405
    assert answer.headers["Allow"] == "DELETE, GET, PUT"
    assert (await server.call("PUT", "/v1/queue/dequeue")).headers["Allow"] == "POST"
    assert (await server.call("DELETE", "/dequeue")).headers["Allow"] == "GET, POST"


async def test_a_body_nobody_reads_is_not_taken_for_the_next_call(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    smuggled = b"DELETE /v1/tenants/acme/queues/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(smuggled) + smuggled)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert answer.count(b"HTTP/1.1") == 1


async def test_a_refused_get_leaves_its_connection_open(server: Server) -> None:
    answer = await server.get("/v1/queue/stats", tenant="acme", queue="nowhere")
    assert answer.status == 404
    assert "Connection" not in answer.headers
