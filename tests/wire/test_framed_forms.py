"""The arrays of the framed protocol: as documented, read back as they were written, and refused out of range."""

from typing import Any

import msgspec
import pytest

from holdfast.model.answers import Delivery, Enqueued, PayloadPart, Result
from holdfast.model.errors import ERRORS_BY_CODE, HoldfastError, InvalidArgument, RateLimited, StaleLease
from holdfast.model.message import Draft, Pieces, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Filter, Progress, Settle, StateDocument, Verdict
from holdfast.wire import requests as req
from holdfast.wire.framed import answers, calls, greetings
from holdfast.wire.framed.calls import NAMED, Context, read_call
from holdfast.wire.operations import OPERATIONS, SAVE_STATE, SET_POLICY, STATS

REF = QueueRef("acme", "mail")
RECEIPT = Receipt(7, b"t" * 16, 3)

# The places of docs/greetings.md, by the model's names. A field that the model gets belongs at the end.
PLACES: list[tuple[type[msgspec.Struct], str]] = [
    (
        calls.FramedDraft,
        "payload content_type headers priority delay_ms deliver_at ttl_ms key group correlation_id max_retries is_json "
        "pieces",
    ),
    (calls.FramedClaimRequest, "limit lease_ms owner with_state ledger streams"),
    (calls.FramedVerdict, "settle receipt error delay_ms defer final exhausted lease_ms"),
    (
        answers.DeliveryIn,
        "snowflake given_correlation_id receipt payload pieces content_type is_json headers priority attempt "
        "enqueued_at lease_expires_at group state",
    ),
    (
        answers.ResultIn,
        "snowflake ok given_correlation_id is_known error state retry_at lease_expires_at is_unsure",
    ),
]


@pytest.mark.parametrize(("kind", "names"), PLACES)
def test_the_fields_of_an_array_stand_in_the_documented_order(kind: type[msgspec.Struct], names: str) -> None:
    assert " ".join(kind.__struct_fields__) == names


def as_call(*places: Any) -> bytes:
    return msgspec.msgpack.encode(places)


# --- Calls -----------------------------------------------------------------------------------------------------------


def test_a_draft_is_read_as_it_was_written() -> None:
    draft = Draft(
        payload=b"\0x",
        content_type="text/plain",
        headers={"a": "b"},
        priority=3,
        delay_ms=4,
        ttl_ms=6,
        key="k",
        group="g",
        correlation_id="c",
        max_retries=7,
        is_json=False,
    )
    call: Any = read_call(calls.write_enqueue(REF, [draft], Context(traceparent="00-1")))
    assert (call.tenant, call.queue, call.context) == (*REF, Context(traceparent="00-1"))
    assert [msgspec.structs.asdict(each) for each in call.drafts] == [msgspec.structs.asdict(draft)]


def test_places_at_the_end_may_be_left_out() -> None:
    call: Any = read_call(as_call("enqueue", None, None, None, [[b"x"]]))
    assert msgspec.structs.asdict(call.drafts[0]) == msgspec.structs.asdict(Draft(payload=b"x"))
    call = read_call(as_call("claim", None, None, None, []))
    assert (call.ask.limit, call.wait_ms) == (1, 0)


def test_claims_and_verdicts_are_read_as_they_were_written() -> None:
    ask = ClaimRequest(limit=5, lease_ms=6, owner="me", with_state=True, ledger=("c", 8), streams=True)
    verdict = Verdict(settle=Settle.NACK, receipt=RECEIPT, error="e", delay_ms=1, final=True, exhausted=True)
    call: Any = read_call(calls.write_exchange(REF, ask, [verdict], None))
    assert msgspec.structs.asdict(call.ask) == msgspec.structs.asdict(ask)
    assert [msgspec.structs.asdict(each) for each in call.verdicts] == [msgspec.structs.asdict(verdict)]
    assert isinstance(call.verdicts[0].receipt, Receipt)
    assert str(call.verdicts[0].receipt) == str(RECEIPT)
    assert call.wait_ms is None
    call = read_call(calls.write_subscribe(REF, ask, 9, 10, release_on_leave=True))
    assert (call.prefetch, call.wait_ms, call.release_on_leave) == (9, 10, True)
    call = read_call(calls.write_read_part(REF, RECEIPT, 1, 2))
    assert (call.receipt, call.offset, call.limit) == (RECEIPT, 1, 2)


# --- Operations by name ----------------------------------------------------------------------------------------------


def test_every_operation_with_a_route_has_a_form() -> None:
    hot = {calls.operation_of(each) for each in calls.HOT_CALLS}
    routed = {name for name, operation in OPERATIONS.items() if operation.routes}
    assert routed - hot - set(NAMED) == {"enqueue_each", "watch", "metrics"}


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("browse", req.BrowseRequest(state="failed", filter=Filter(priority=3), limit=7)),
        ("move", req.MoveRequest(to=QueueRef("beta", "post"), state=State.FAILED)),
        ("journal", req.JournalRequest(after="7", until="9", tenant="beta")),
        ("redrive", req.RedriveRequest(rate_per_s=2.5)),
        ("set_schedule", req.ScheduleRequest(name="s", every_ms=5_000, message=Draft(payload=b"\xff"))),
        ("save_state", req.StateRequest(receipt=RECEIPT, progress=Progress(percent=3))),
        ("delete", req.DeleteRequest(force_after_ms=0)),
        ("pause", req.PauseRequest(paused=False)),
        ("stats", req.Nothing()),
    ],
)
def test_arguments_by_name_are_read_as_they_were_written(name: str, request_: Any) -> None:
    call = read_call(calls.write_named(OPERATIONS[name], REF, request_))
    assert calls.operation_of(call) == name
    assert NAMED[name].request(call, REF) == request_


def test_arguments_may_be_left_out_where_none_is_required() -> None:
    assert NAMED["stats"].request(read_call(as_call("stats", None, None, None)), REF) == req.Nothing()
    with pytest.raises(msgspec.ValidationError):
        read_call(as_call("get", None, None, None))


def test_a_state_document_is_json_in_bytes_and_anything_else_is_refused() -> None:
    request = req.StateRequest(receipt=RECEIPT, document=msgspec.Raw(b'{"a": 1}'), etag="e")
    call = read_call(calls.write_named(SAVE_STATE, REF, request))
    assert bytes(NAMED["save_state"].request(call, REF).document) == b'{"a": 1}'
    for bad in (b"{", b"", b'"\xff"', b"[" * 100_000):
        call = read_call(as_call("save_state", None, None, None, {"receipt": str(RECEIPT), "document": bad}))
        with pytest.raises(InvalidArgument):
            NAMED["save_state"].request(call, REF)


def test_a_changed_configuration_crosses_as_plain_values() -> None:
    request = req.ConfigureRequest(changes={"max_retries": msgspec.Raw(b"3"), "paused": True})
    call = read_call(calls.write_named(SET_POLICY, REF, request))
    assert NAMED["set_policy"].request(call, REF).changes == {"max_retries": 3, "paused": True}


def test_a_schedules_message_cannot_say_where_its_payload_is() -> None:
    message = {"payload": b"x", "pieces": {"place": 1, "size": 1, "checksum": 1}}
    with pytest.raises(msgspec.ValidationError, match="pieces"):
        read_call(as_call("set_schedule", None, None, None, {"name": "s", "message": message}))


# --- Answers ---------------------------------------------------------------------------------------------------------


def test_enqueued_messages_are_read_as_they_were_written() -> None:
    plain = [Enqueued(snowflake=1), Enqueued(snowflake=2)]
    told = [Enqueued(snowflake=1, duplicate=True), Enqueued(snowflake=2, given_correlation_id="c")]
    assert answers.read_enqueued(answers.write_enqueued(plain)) == plain
    assert answers.read_enqueued(answers.write_enqueued(told)) == told
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        answers.read_enqueued(as_call([1], [], ["c"]))


def test_deliveries_and_results_are_read_as_they_were_written() -> None:
    delivery = Delivery(
        snowflake=7,
        given_correlation_id="c",
        receipt=RECEIPT,
        payload=b"",
        pieces=Pieces(55, 10, 11),
        content_type="t",
        is_json=True,
        headers={"a": "b"},
        priority=1,
        attempt=2,
        enqueued_at=3,
        lease_expires_at=4,
        group="g",
        state=StateDocument(document=b"{}", etag="e", progress=Progress(percent=5, text="p")),
    )
    result = Result(snowflake=7, ok=False, is_known=False, error="stale_lease", state=State.READY, retry_at=1)
    read = answers.read_claimed(answers.write_claimed([delivery], [result]))
    [told] = read.deliveries
    # Where the server keeps it stays the server's.
    expected = msgspec.structs.asdict(msgspec.structs.replace(delivery, pieces=Pieces(0, 10, 11)))
    state = expected.pop("state")
    assert {name: value for name, value in msgspec.structs.asdict(told).items() if name != "state"} == expected
    assert msgspec.structs.asdict(told.state) == msgspec.structs.asdict(state)  # type: ignore[arg-type]  # is there
    assert isinstance(told.receipt, Receipt)
    assert [msgspec.structs.asdict(each) for each in read.results] == [msgspec.structs.asdict(result)]
    assert answers.read_claimed(answers.write_claimed([])) == ([], [])


def test_a_part_is_read_as_it_was_written() -> None:
    part = PayloadPart(b"x", 2, "c")
    assert answers.read_part(answers.write_part(part)) == part


def test_answers_with_places_that_a_client_does_not_know_are_read() -> None:
    assert answers.read_enqueued(as_call([1], [], [], "new")) == [Enqueued(snowflake=1)]
    [result] = answers.read_results(as_call([1, True, None, True, None, "ready", None, None, False, "new"]))
    assert result.ok


def test_answers_by_name_are_read_as_they_were_written() -> None:
    stats = STATS.answer(**dict.fromkeys(STATS.answer.__struct_fields__, 0) | {"paused": True, "draining": False})
    assert NAMED["stats"].read_answer(NAMED["stats"].write_answer(stats)) == stats


# --- Errors and hellos -----------------------------------------------------------------------------------------------


@pytest.mark.spec("3.11")
@pytest.mark.parametrize("kind", ERRORS_BY_CODE.values())
def test_every_error_is_read_as_it_was_written(kind: type[HoldfastError]) -> None:
    read = greetings.read_error(greetings.write_error(kind("no", field="f")))
    assert (type(read), read.message, read.facts["field"]) == (kind, "no", "f")


def test_an_error_has_the_models_code_and_how_long_to_wait() -> None:
    assert msgspec.msgpack.decode(greetings.write_error(StaleLease("no")))["code"] == "stale_lease"
    read = greetings.read_error(greetings.write_error(RateLimited("wait", retry_after_ms=7)))
    assert read.facts["retry_after_ms"] == 7


def test_anything_else_is_an_internal_error() -> None:
    for body in (b"", b"\xc1", b"\xa1\xff", b"\x91" * 100_000, msgspec.msgpack.encode([1])):
        assert greetings.read_error(body).code == "internal"


def test_hellos_are_read_as_they_were_written_and_may_grow() -> None:
    client = greetings.ClientHello(1, "token", "tool", "2")
    server = greetings.ServerHello(1, "0.1", 2, 3, 4, 5)
    assert greetings.read_client_hello(greetings.write_hello(client)) == client
    assert greetings.read_server_hello(greetings.write_hello(server)) == server
    assert greetings.read_client_hello(as_call(1)) == greetings.ClientHello(1)
    assert greetings.read_client_hello(as_call(1, None, "", "", "new")) == greetings.ClientHello(1)
    assert greetings.read_credit(greetings.write_credit(9)) == 9
