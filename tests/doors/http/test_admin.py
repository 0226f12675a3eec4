"""Tenants, queues and their messages over HTTP."""

import asyncio

import aiohttp
import pytest

from holdfast.testing import ManualClock
from tests.doors.serving import Server

QUEUE = "/v1/tenants/acme/queues/jobs"
HOSTILE = ["..", "%2e%2e", ".hidden", "a%2Fb", "..%2f..%2fetc", "a%00b", "a%0Ab", "a%20b", "a'b", "a%22b", "a:b"]
HOSTILE += ["%C3%BC", "%FF", "%E2%80%AE", "x" * 129, "*", "%25", "a;b", "{a}", "a%2525b"]


@pytest.mark.spec("8.1")
async def test_stats_count_exactly_what_is_there(stored: Server) -> None:
    await stored.enqueue(1, 2, 3)
    await stored.enqueue(4, delay_ms=60_000)
    await stored.dequeue()
    answer = await stored.get("/v1/queue/stats", tenant="acme", queue="jobs")
    assert answer.status == 200
    assert answer.json == {
        "ready": 2,
        "delayed": 1,
        "in_flight": 1,
        "failed": 0,
        "bytes": 4,
        "oldest_ready_age_ms": 0,
        "waiters": 0,
        "paused": False,
        "draining": False,
    }


async def test_stats_of_a_queue_that_does_not_exist_are_not_found(server: Server) -> None:
    answer = await server.get("/v1/queue/stats", tenant="acme", queue="nowhere")
    assert (answer.status, answer.code) == (404, "queue_not_found")


@pytest.mark.spec("1.1")
async def test_tenant_and_queue_of_a_query_may_be_left_out(server: Server) -> None:
    await server.enqueue(1, tenant="default", queue="default")
    assert (await server.get("/v1/queue/stats")).json["ready"] == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/queue/stats?tennant=acme",
        "/v1/queue/stats?queue=a&queue=b",
        "/v1/tenants?x=1",
        f"{QUEUE}/messages?limit=1&size=2",
    ],
)
async def test_a_field_that_a_query_does_not_have_is_refused_by_its_name(server: Server, path: str) -> None:
    answer = await server.get(path)
    assert (answer.status, answer.code) == (400, "invalid_argument")
    assert answer.json["error"]["field"] in path


@pytest.mark.spec("8.1")
async def test_watch_tells_when_messages_become_available(server: Server) -> None:
    await server.enqueue("first")
    async with server.http.get(server.url + "/v1/queue/watch?tenant=acme&queue=jobs") as response:
        assert response.content_type == "text/event-stream"
        await _event(response)
        await server.enqueue("second")
        assert await _event(response) == b'{"tenant":"acme","queue":"jobs","ready":2}'


async def _event(response: aiohttp.ClientResponse) -> bytes:
    async with asyncio.timeout(60):
        while (line := await response.content.readline()) != b"event: available\n":
            assert line.startswith(b":") or not line.strip(), line
        return (await response.content.readline()).removeprefix(b"data: ").rstrip()


# --- Tenants ---------------------------------------------------------------------------------------------------


async def test_a_tenant_is_changed_field_by_field_and_answered_whole(stored: Server) -> None:
    first = await stored.put("/v1/tenants/acme", {"weight": 3, "limits": {"write_ops_per_s": 5}})
    assert first.status == 200
    second = await stored.put("/v1/tenants/acme", {"limits": {"burst_s": 2}, "quotas": {"max_messages": 7}})
    assert second.json == {
        "tenant": "acme",
        "weight": 3,
        "limits": {
            "write_ops_per_s": 5,
            "write_bytes_per_s": None,
            "read_ops_per_s": None,
            "read_bytes_per_s": None,
            "burst_s": 2,
        },
        "quotas": {
            "max_messages": 7,
            "max_bytes": None,
            "max_message_bytes": None,
            "max_queues": 10_000,
            "default_ttl_ms": None,
        },
        "journal_retention_ms": None,
    }
    looked_up = (await stored.get("/v1/tenants/acme")).json
    assert looked_up.pop("stats")["ready"] == 0
    assert looked_up == second.json
    assert (await stored.get("/v1/tenants")).json == {"tenants": [second.json]}


async def test_a_tenants_stats_are_those_of_all_its_queues(server: Server) -> None:
    await server.enqueue(1, queue="a")
    await server.enqueue(2, queue="b")
    assert (await server.get("/v1/tenants/acme")).json["stats"]["ready"] == 2


@pytest.mark.parametrize(
    "changes",
    [{"wait": 1}, {"weight": 0}, {"weight": "2"}, {"quotas": 5}, {"quotas": {"max": 1}}, {"limits": {"burst_s": -1}}],
)
async def test_a_wrong_field_of_a_tenant_changes_nothing(server: Server, changes: dict[str, object]) -> None:
    answer = await server.put("/v1/tenants/acme", {"journal_retention_ms": 5, **changes})
    assert (answer.status, answer.code) == (400, "invalid_argument")
    assert (await server.get("/v1/tenants")).json == {"tenants": []}


async def test_only_an_operator_changes_tenants(guarded: Server) -> None:
    refused = await guarded.with_token("acme").put("/v1/tenants/acme", {"weight": 9})
    assert (refused.status, refused.code) == (403, "forbidden")
    reader = await guarded.with_token("reading-operator").put("/v1/tenants/acme", {"weight": 9})
    assert (reader.status, reader.code) == (403, "forbidden")
    assert (await guarded.with_token("operator").put("/v1/tenants/acme", {"weight": 2})).json["weight"] == 2
    assert (await guarded.with_token("acme-reader").get("/v1/tenants/acme")).json["weight"] == 2


async def test_a_tenant_sees_itself_alone_in_the_list(guarded: Server) -> None:
    operator = guarded.with_token("operator")
    for tenant in ("acme", "other"):
        await operator.put(f"/v1/tenants/{tenant}")
    names = [each["tenant"] for each in (await operator.get("/v1/tenants")).json["tenants"]]
    assert names == ["acme", "other"]
    mine = await guarded.with_token("acme-reader").get("/v1/tenants")
    assert [each["tenant"] for each in mine.json["tenants"]] == ["acme"]


# --- Queues ----------------------------------------------------------------------------------------------------


async def test_a_policy_is_changed_field_by_field_and_answered_whole(stored: Server) -> None:
    created = await stored.put(QUEUE)
    assert created.status == 200
    assert created.json["lease_ms"] == 5_000
    assert (await stored.put(QUEUE, {"lease_ms": 1_000})).json["lease_ms"] == 1_000
    changed = (await stored.put(QUEUE, {"max_retries": 9, "limits": {"read_ops_per_s": 3}})).json
    assert (changed["lease_ms"], changed["max_retries"], changed["limits"]["read_ops_per_s"]) == (1_000, 9, 3)
    assert changed["limits"]["burst_s"] == 1.0
    assert (await stored.get(QUEUE)).json["policy"] == changed


async def test_two_changes_at_once_to_a_queue_that_is_being_made_both_hold(stored: Server) -> None:
    await asyncio.gather(stored.put(QUEUE, {"lease_ms": 1_234}), stored.put(QUEUE, {"max_retries": 8}))
    policy = (await stored.get(QUEUE)).json["policy"]
    assert (policy["lease_ms"], policy["max_retries"]) == (1_234, 8)


@pytest.mark.parametrize("changes", [{"lease": 1}, {"lease_ms": 0}, {"on_ttl": "explode"}, {"lease_ms": None}, []])
async def test_a_wrong_policy_is_refused_and_makes_no_queue(server: Server, changes: object) -> None:
    answer = await server.put(QUEUE, changes)
    assert (answer.status, answer.code) == (400, "invalid_argument")
    assert (await server.get("/v1/tenants/acme/queues")).json == {"queues": []}


async def test_a_queue_is_listed_with_its_stats_and_looked_up_with_its_policy(server: Server) -> None:
    await server.enqueue("x")
    [listed] = (await server.get("/v1/tenants/acme/queues")).json["queues"]
    assert (listed["queue"], listed["ready"], listed["bytes"]) == ("jobs", 1, 3)
    looked_up = (await server.get(QUEUE)).json
    assert looked_up.pop("policy")["max_retries"] == 3
    assert looked_up.pop("tenant") == "acme"
    assert looked_up == listed
    assert (await server.get("/v1/tenants/acme/queues/nowhere")).code == "queue_not_found"


@pytest.mark.spec("8.11")
async def test_delete_answers_202_as_soon_as_the_queue_drains(stored: Server, clock: ManualClock) -> None:
    await stored.enqueue("held", "left")
    [held] = await stored.dequeue()
    answer = await stored.delete(QUEUE, force_after_ms=5_000)
    assert (answer.status, answer.json) == (202, {"tenant": "acme", "queue": "jobs", "draining": True})
    assert (await stored.get(QUEUE)).json["draining"] is True
    refused = await stored.post("/v1/queue/enqueue", {"tenant": "acme", "queue": "jobs", "messages": [{"payload": 1}]})
    assert (refused.status, refused.code) == (409, "draining")
    ack = {"tenant": "acme", "queue": "jobs", "receipts": [held["receipt"]]}
    assert (await stored.post("/v1/queue/ack", ack)).status == 200
    clock.advance(5_001)
    await _until_gone(stored, clock)


async def _until_gone(server: Server, clock: ManualClock) -> None:
    for _ in range(100):
        if (await server.get(QUEUE)).status == 404:
            return
        clock.advance(100)
        await asyncio.sleep(0)
    pytest.fail("the queue is still there")


async def test_delete_of_a_queue_that_does_not_exist_is_not_found(server: Server) -> None:
    assert (await server.delete(QUEUE)).code == "queue_not_found"
    assert (await server.delete(QUEUE, force_after_ms="soon")).code == "invalid_argument"


# --- Messages --------------------------------------------------------------------------------------------------


async def test_messages_are_browsed_page_by_page_without_receipt_or_payload(stored: Server) -> None:
    ids = await stored.enqueue(*range(5), headers={"kind": "x"})
    seen, cursor = [], None
    while True:
        query = {"limit": 2} if cursor is None else {"limit": 2, "cursor": cursor}
        page = (await stored.get(f"{QUEUE}/messages", **query)).json
        seen += page["messages"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert [each["id"] for each in seen] == ids
    assert not {"receipt", "payload", "payload_base64"} & set(seen[0])
    assert seen[0]["headers"] == {"kind": "x"}


async def test_messages_are_browsed_by_state_and_filter(stored: Server) -> None:
    await stored.fail("a", error="no disk")
    [second] = await stored.fail("b", error="no net")
    await stored.enqueue("c")
    failed = (await stored.get(f"{QUEUE}/messages", state="failed")).json["messages"]
    assert [each["last_error"] for each in failed] == ["no disk", "no net"]
    found = await stored.get(f"{QUEUE}/messages", state="failed", filter='{"error_contains":"net"}')
    assert [each["id"] for each in found.json["messages"]] == [second]
    assert (await stored.get(f"{QUEUE}/messages", state="lost")).code == "invalid_argument"
    assert (await stored.get(f"{QUEUE}/messages", filter='{"eror":"net"}')).code == "invalid_argument"


async def test_payloads_come_where_they_are_asked_for(server: Server) -> None:
    [id] = await server.enqueue({"n": 1})
    assert (await server.get(f"{QUEUE}/messages", payload=1)).json["messages"][0]["payload"] == {"n": 1}
    assert (await server.get(f"{QUEUE}/messages/{id}", payload=1)).json["payload"] == {"n": 1}
    assert "payload" not in (await server.get(f"{QUEUE}/messages/{id}")).json
    assert (await server.get(f"{QUEUE}/messages/{id}", payload="maybe")).code == "invalid_argument"


async def test_a_page_with_payloads_ends_by_its_bytes_and_continues_at_its_cursor(server: Server) -> None:
    big = "x" * (1 << 19)
    for _ in range(5):
        await server.enqueue(*[big] * 10)
    first = (await server.get(f"{QUEUE}/messages", payload=1, limit=100)).json
    assert 30 < len(first["messages"]) < 50
    rest = (await server.get(f"{QUEUE}/messages", payload=1, limit=100, cursor=first["cursor"])).json
    assert len(first["messages"]) + len(rest["messages"]) == 50
    assert rest["cursor"] is None


async def test_peek_shows_what_would_be_claimed_next_and_leases_nothing(server: Server) -> None:
    await server.enqueue("later", priority=200)
    await server.enqueue("sooner", priority=1)
    [only] = (await server.get(f"{QUEUE}/peek")).json["messages"]
    assert only["payload"] == "sooner"
    both = (await server.get(f"{QUEUE}/peek", limit=5)).json["messages"]
    assert [each["payload"] for each in both] == ["sooner", "later"]
    assert (await server.get("/v1/queue/stats", tenant="acme", queue="jobs")).json["ready"] == 2


async def test_a_message_is_looked_up_by_either_spelling_of_its_id(server: Server) -> None:
    [id] = await server.enqueue("x", correlation_id="order-7")
    answer = await server.get(f"{QUEUE}/messages/{id}")
    assert (answer.json["state"], answer.json["correlation_id"]) == ("ready", "order-7")
    assert answer.headers["X-Correlation-Id"] == "order-7"
    again = await server.get(f"{QUEUE}/messages/{answer.json['snowflake']}")
    assert again.json == answer.json


async def test_a_message_that_is_gone_is_not_found(server: Server) -> None:
    [id] = await server.enqueue("x")
    assert (await server.delete(f"{QUEUE}/messages/{id}")).json == {}
    for answer in (await server.get(f"{QUEUE}/messages/{id}"), await server.delete(f"{QUEUE}/messages/{id}")):
        assert (answer.status, answer.code) == (404, "message_not_found")
    assert (await server.get(f"{QUEUE}/messages/seven")).code == "invalid_argument"


# --- Names -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("1.2")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_name_in_a_path_is_refused_as_a_name(server: Server, name: str) -> None:
    for path in (f"/v1/tenants/{name}", f"/v1/tenants/{name}/queues/q", f"/v1/tenants/acme/queues/{name}"):
        answer = await _raw(server, "PUT", path)
        assert answer == (400, "invalid_name"), path
    assert await _raw(server, "GET", f"/v1/tenants/acme/queues/{name}/messages") == (400, "invalid_name")
    status, code = await _raw(server, "GET", f"/v1/queue/stats?queue={name}")
    # A query must be text before it can have names.
    assert (status, code) == (400, "invalid_argument" if name == "%FF" else "invalid_name")
    assert (await server.get("/v1/tenants")).json == {"tenants": []}


async def test_an_empty_name_in_a_path_is_refused_as_a_name(server: Server) -> None:
    for path in ("/v1/tenants/", "/v1/tenants//queues", "/v1/tenants/acme/queues/"):
        assert await _raw(server, "GET", path) == (400, "invalid_name")


async def _raw(server: Server, method: str, path: str) -> tuple[int, str]:
    """Send a request with this exact path, which HTTP clients would normalize."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    code = body.partition(b'"code":"')[2].partition(b'"')[0]
    return int(head.split(b" ", 2)[1]), code.decode()
