"""Operations of the table over both wires: their documents, and requests that no document can hold."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

import holdfast
from holdfast.model.answers import Info, JournalEvents, Page
from holdfast.model.ids import to_uuid
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Edit, Filter, Progress
from holdfast.testing import ManualClock
from holdfast.wire import requests as req
from holdfast.wire.capnp.arguments import CAPNP_BINDINGS
from tests.doors.capnp_serving import serve_capnp
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import serve

REF = QueueRef("acme", "mail")
RECEIPT = Receipt(1 << 60, b"t" * 16, 3)
SOME = Filter(ids=frozenset({1 << 60}), headers={"a": "b"}, delayed=False)

# By operation: a request, and its arguments over Cap'n Proto.
ARGUMENTS: list[tuple[str, Any, dict[str, Any]]] = [
    ("tenants", req.Nothing(), {}),
    ("get", req.GetRequest(id=7, payload=True), {"id": 7, "payload": True}),
    (
        "browse",
        req.BrowseRequest(state="ready", filter=SOME, cursor="7"),
        {
            "state": "ready",
            "filter": {"ids": [to_uuid(1 << 60)], "headers": {"a": "b"}, "delayed": False},
            "cursor": "7",
        },
    ),
    ("journal", req.JournalRequest(after="1", tenant="acme"), {"after": "1", "tenant": "acme"}),
    ("ledger_ack", req.LedgerAckRequest(consumer="c", upto=4), {"consumer": "c", "upto": 4}),
    (
        "save_state",
        req.StateRequest(receipt=RECEIPT, document=Raw(b'{"a":1}'), etag="e"),
        {"receipt": str(RECEIPT), "document": {"a": 1}, "etag": "e"},
    ),
    (
        "save_state",
        req.StateRequest(receipt=RECEIPT, progress=Progress(percent=5.0)),
        {"receipt": str(RECEIPT), "progress": {"percent": 5.0, "text": ""}},
    ),
    ("set_policy", req.ConfigureRequest(changes={"max_retries": 3}), {"changes": {"max_retries": 3}}),
    ("pause", req.PauseRequest(paused=False), {"paused": False}),
    ("purge", req.PurgeRequest(state=State.FAILED), {"state": "failed"}),
    ("cancel", req.CancelRequest(), {}),
    (
        "move",
        req.MoveRequest(to=QueueRef("other", "post"), state=State.FAILED),
        {"queue": "post", "tenant": "other", "state": "failed"},
    ),
    (
        "redrive",
        req.RedriveRequest(rate_per_s=2.5, edit=Edit(id=7, payload=b"x", content_type="text/plain")),
        {"rate_per_s": 2.5, "edit": {"id": 7, "payload": "eA==", "content_type": "text/plain"}},
    ),
    ("delete_schedule", req.ScheduleNameRequest(name="s"), {"name": "s"}),
]


@pytest.mark.parametrize(("name", "request_", "document"), ARGUMENTS)
def test_arguments_over_capnp_are_these_documents_and_are_read_back(
    name: str, request_: Any, document: dict[str, Any]
) -> None:
    binding = CAPNP_BINDINGS[name]
    written = binding.write(request_)
    assert msgspec.json.decode(written or b"{}") == document
    read = binding.read(written, REF)
    assert read == request_ or bytes(read.document) == bytes(request_.document)


def test_a_schedules_message_is_the_draft_itself_over_capnp() -> None:
    binding = CAPNP_BINDINGS["set_schedule"]
    request = req.ScheduleRequest(name="s", every_ms=5_000, message=Draft(payload=b"x"))
    written = binding.write(request)
    assert msgspec.json.decode(written)["message"]["payload"] == "eA=="
    assert binding.read(written, REF) == request


def test_a_schedules_message_cannot_say_where_its_payload_is_over_capnp() -> None:
    document = b'{"name":"s","message":{"payload":"eA==","pieces":{"place":1,"size":1,"checksum":1}}}'
    with pytest.raises(msgspec.ValidationError, match="pieces"):
        CAPNP_BINDINGS["set_schedule"].read(document, REF)


def test_a_move_without_a_tenant_stays_with_the_tenant_of_the_call() -> None:
    assert CAPNP_BINDINGS["move"].read(b'{"queue":"post"}', REF) == req.MoveRequest(to=QueueRef("acme", "post"))


def test_an_unknown_argument_is_refused_by_name() -> None:
    for binding in CAPNP_BINDINGS.values():
        with pytest.raises(msgspec.ValidationError, match="colour"):
            binding.read(b'{"colour":1}', REF)


def test_pages_and_events_have_documents_with_their_positions_over_capnp() -> None:
    page: Page[Info] = Page()
    page.cursor = "7"
    assert CAPNP_BINDINGS["browse"].write_answer(page) == b'{"messages":[],"cursor":"7"}'
    assert CAPNP_BINDINGS["browse"].read_answer(b'{"messages":[],"cursor":"7"}').cursor == "7"
    events = JournalEvents()
    events.next = "9"
    assert CAPNP_BINDINGS["journal"].write_answer(events) == b'{"events":[],"next":"9"}'
    assert CAPNP_BINDINGS["journal"].read_answer(b'{"events":[],"next":"9"}').next == "9"


@pytest.mark.parametrize("serving", [serve, serve_capnp, serve_framed])
async def test_a_value_that_no_wire_can_hold_is_refused_before_it_is_sent(clock: ManualClock, serving: Any) -> None:
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await q.enqueue(1)
        [message] = await q.claim()
        before = len(server.requests.seen)
        strange: Any = object()
        for refused in (
            q.save_state(message, {}, etag=strange),
            q.redrive(dry_run=strange),
            q.set_policy(max_retries=float("nan")),
            q.set_policy(max_retries=strange),
            q.schedule("s", cron=strange, payload=1),
            q.get(strange),
            q.list(cursor=strange),
            q.peek(strange),
            hf.journal(strange),
            hf.backup("somewhere"),
        ):
            with pytest.raises(holdfast.InvalidArgument):
                await refused
        assert len(server.requests.seen) == before


@pytest.mark.parametrize("serving", [serve, serve_capnp, serve_framed])
async def test_pause_and_resume_reach_the_server(clock: ManualClock, serving: Any) -> None:
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await q.enqueue(1)
        await q.pause()
        assert (await q.stats()).paused
        await q.resume()
        assert not (await q.stats()).paused
