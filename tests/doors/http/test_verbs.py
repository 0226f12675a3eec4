"""The operators' verbs over HTTP."""

import asyncio
from typing import Any

import pytest

from holdfast.testing import ManualClock
from tests.doors.serving import Server

QUEUE = "/v1/tenants/acme/queues/jobs"
VERBS = ["pause", "resume", "purge", "redrive", "move", "cancel", "reprioritise"]


async def stats(server: Server, queue: str = "jobs") -> dict[str, Any]:
    answer = await server.get("/v1/queue/stats", tenant="acme", queue=queue)
    assert answer.status == 200, answer
    return dict(answer.json)


@pytest.mark.spec("3.8")
async def test_a_paused_queue_takes_messages_and_gives_none_until_it_is_resumed(stored: Server) -> None:
    await stored.enqueue("before")
    paused = await stored.post(f"{QUEUE}/pause")
    assert (paused.status, paused.json) == (200, {"tenant": "acme", "queue": "jobs", "paused": True})
    await stored.enqueue("while")
    assert await stored.dequeue(10) == []
    assert (await stats(stored))["paused"] is True
    assert (await stored.post(f"{QUEUE}/resume")).json["paused"] is False
    assert len(await stored.dequeue(10)) == 2


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_on_a_queue_that_does_not_exist_is_not_found(server: Server, verb: str) -> None:
    document = {"move": {"to": {"queue": "other"}}, "reprioritise": {"priority": 1}}.get(verb)
    answer = await server.post(f"{QUEUE}/{verb}", document)
    assert (answer.status, answer.code) == (404, "queue_not_found")


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_refuses_a_field_it_does_not_know(server: Server, verb: str) -> None:
    await server.enqueue(1)
    needed = {"move": {"to": {"queue": "other"}}, "reprioritise": {"priority": 1}}.get(verb, {})
    answer = await server.post(f"{QUEUE}/{verb}", {**needed, "fliter": {}})
    assert (answer.status, answer.code) == (400, "invalid_argument")
    assert "fliter" in answer.json["error"]["message"]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_needs_the_scope_admin(guarded: Server, verb: str) -> None:
    await guarded.with_token("acme-worker").enqueue(1)
    document = {"move": {"to": {"queue": "other"}}, "reprioritise": {"priority": 1}}.get(verb)
    for token in ("acme-worker", "other"):
        answer = await guarded.with_token(token).post(f"{QUEUE}/{verb}", document)
        assert (answer.status, answer.code) == (403, "forbidden")
    assert (await guarded.with_token("acme").post(f"{QUEUE}/{verb}", document)).status == 200


async def test_purge_takes_what_is_ready_and_delayed_but_not_what_is_in_flight(stored: Server) -> None:
    ids = await stored.enqueue("held", "ready")
    ids += await stored.enqueue("delayed", delay_ms=1_000)
    await stored.dequeue()
    assert (await stored.post(f"{QUEUE}/purge")).json == {"matched": 2, "changed": 2}
    left = await stats(stored)
    assert (left["ready"], left["delayed"], left["in_flight"]) == (0, 0, 1)
    removed = [each for each in (await stored.get("/v1/journal")).lines if each["event"] == "removed"]
    assert [(each["id"], each["reason"]) for each in removed] == [(id, "purged") for id in ids[1:]]


async def test_purge_takes_the_failed_when_asked(server: Server) -> None:
    await server.fail("x")
    await server.enqueue("ready")
    assert (await server.post(f"{QUEUE}/purge", {"state": "failed"})).json == {"matched": 1, "changed": 1}
    assert (await stats(server))["ready"] == 1
    for state in ("in_flight", "gone"):
        assert (await server.post(f"{QUEUE}/purge", {"state": state})).code == "invalid_argument"


async def test_cancel_takes_what_matches(server: Server) -> None:
    await server.enqueue(1, 2, headers={"kind": "a"})
    await server.enqueue(3, headers={"kind": "b"})
    assert (await server.post(f"{QUEUE}/cancel", {"filter": {"headers": {"kind": "a"}}})).json["changed"] == 2
    assert [each["payload"] for each in await server.dequeue(5)] == [3]


async def test_reprioritise_changes_who_is_claimed_first(server: Server) -> None:
    _, last = await server.enqueue("first", "last")
    answer = await server.post(f"{QUEUE}/reprioritise", {"priority": 1, "filter": {"ids": [last]}})
    assert answer.json == {"matched": 1, "changed": 1}
    assert (await server.dequeue())[0]["payload"] == "last"
    assert (await server.post(f"{QUEUE}/reprioritise", {"priority": 256})).code == "invalid_argument"
    assert (await server.post(f"{QUEUE}/reprioritise")).code == "invalid_argument"


async def test_move_takes_messages_with_their_ids_to_another_of_the_tenants_queues(stored: Server) -> None:
    ids = await stored.enqueue(1, 2)
    assert (await stored.post(f"{QUEUE}/move", {"to": {"queue": "else"}})).json == {"matched": 2, "changed": 2}
    assert [each["id"] for each in await stored.dequeue(5, queue="else")] == ids
    assert (await stored.post(f"{QUEUE}/move", {"to": {"queue": "jobs"}})).code == "invalid_argument"
    assert (await stored.post(f"{QUEUE}/move", {"to": {"queue": "../x"}})).code == "invalid_name"
    assert (await stored.post(f"{QUEUE}/move", {"to": {"queue": "else"}, "state": "lost"})).code == "invalid_argument"


async def test_only_an_operator_moves_messages_to_another_tenant(guarded: Server) -> None:
    await guarded.with_token("acme").enqueue(1)
    move = {"to": {"tenant": "other", "queue": "inbox"}}
    refused = await guarded.with_token("acme").post(f"{QUEUE}/move", move)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert (await guarded.with_token("operator").post(f"{QUEUE}/move", move)).json["changed"] == 1
    assert len(await guarded.with_token("other").dequeue(queue="inbox", tenant="other")) == 1


async def test_redrive_counts_first_and_brings_back_what_failed(stored: Server) -> None:
    ids = await stored.fail(1, 2, error="no disk")
    await stored.fail(3, error="no net")
    disk = {"filter": {"error_contains": "disk"}}
    assert (await stored.post(f"{QUEUE}/redrive", {**disk, "dry_run": True})).json == {"matched": 2, "redriven": 0}
    assert (await stats(stored))["failed"] == 3
    assert (await stored.post(f"{QUEUE}/redrive", disk)).json == {"matched": 2, "redriven": 2}
    assert [each["id"] for each in await stored.dequeue(5)] == ids
    assert (await stored.post(f"{QUEUE}/redrive")).json == {"matched": 1, "redriven": 1}


@pytest.mark.spec("3.8")
async def test_redrive_may_mend_a_payload_first(server: Server) -> None:
    one, _ = await server.fail({"n": "wrong"}, {"n": 2})
    answer = await server.post(f"{QUEUE}/redrive", {"edit": {"id": one, "payload": {"n": 1}}})
    assert answer.json == {"matched": 1, "redriven": 1}
    assert [each["payload"] for each in await server.dequeue(5)] == [{"n": 1}]
    assert (await server.post(f"{QUEUE}/redrive", {"edit": {"id": one}})).code == "invalid_argument"


async def test_redrive_keeps_to_the_rate_it_is_given(server: Server, clock: ManualClock) -> None:
    await server.fail(*range(4))
    redriving = asyncio.create_task(server.post(f"{QUEUE}/redrive", {"rate_per_s": 1}))
    for brought_back in (1, 2, 3):
        await until_ready(server, brought_back)
        clock.advance(999)
        assert (await stats(server))["ready"] == brought_back
        clock.advance(1)
    await until_ready(server, 4)
    clock.advance(1_000)
    assert (await redriving).json == {"matched": 4, "redriven": 4}


async def test_a_caller_that_leaves_ends_its_slow_redrive(server: Server, clock: ManualClock) -> None:
    await server.fail(*range(4))
    redriving = asyncio.create_task(server.post(f"{QUEUE}/redrive", {"rate_per_s": 1}))
    await until_ready(server, 1)
    redriving.cancel()
    for _ in range(1_000):
        if ("redrive", ("acme", "jobs"), "left") in server.requests.seen:
            break
        await asyncio.sleep(0.005)
    clock.advance(10_000)
    assert (await stats(server))["failed"] == 3
    assert (await server.post(f"{QUEUE}/redrive")).json["redriven"] == 3


async def until_ready(server: Server, ready: int) -> None:
    for _ in range(1_000):
        if (await stats(server))["ready"] == ready:
            return
    pytest.fail(f"there were never {ready} ready")


@pytest.mark.parametrize("rate", [0, -1, "1"])
async def test_a_rate_that_is_none_is_refused(server: Server, rate: object) -> None:
    await server.fail(1)
    assert (await server.post(f"{QUEUE}/redrive", {"rate_per_s": rate})).code == "invalid_argument"


async def test_the_slowest_rate_there_is_redrives_one_and_waits(server: Server) -> None:
    await server.fail(1, 2)
    redriving = asyncio.create_task(server.post(f"{QUEUE}/redrive", {"rate_per_s": 5e-324}))
    await until_ready(server, 1)
    redriving.cancel()
