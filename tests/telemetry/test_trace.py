"""A trace continues across a queue, from the producer's span to the ack, with tracing on or off."""

import logging
import sys
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind

from holdfast.client.client import AsyncHoldfast
from holdfast.model.answers import Delivery, Enqueued, Result
from holdfast.model.errors import PayloadTooLarge
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.stores.memory import MemoryStore
from holdfast.telemetry import trace as trace_module
from holdfast.telemetry.exporting import tracing_from
from holdfast.telemetry.trace import Tracing
from holdfast.telemetry.w3c import parse_parent
from holdfast.testing import EmbeddedSubject
from tests.telemetry.scraping import core_of

REF = QueueRef("acme", "payments")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"
WORKER = "00-11111111111111111111111111111111-2222222222222222-01"
REQUEST = {b"traceparent": GIVEN.encode(), b"tracestate": b"vendor=x"}


class Door:
    """Do what a door does around each call."""

    def __init__(self, hf: AsyncHoldfast, tracing: Tracing) -> None:
        self._messages = core_of(hf).messages
        self._tracing = tracing

    async def enqueue(self, request: dict[bytes, bytes], drafts: list[Draft]) -> list[Enqueued]:
        with self._tracing.enqueue(request, REF, drafts) as (carrying, tell):
            answers: list[Enqueued] = await self._messages.enqueue(REF, carrying)
            tell(answers)
        return answers

    async def claim(self, request: dict[bytes, bytes], limit: int = 10, lease_ms: int = 5_000) -> list[Delivery]:
        deliveries: list[Delivery] = await self._messages.claim(REF, ClaimRequest(limit=limit, lease_ms=lease_ms), 0)
        self._tracing.deliver(request, REF, deliveries)
        return deliveries

    async def settle(self, request: dict[bytes, bytes], settle: Settle, deliveries: list[Delivery]) -> list[Result]:
        verdicts = [Verdict(settle=settle, receipt=each.receipt, delay_ms=0) for each in deliveries]
        results: list[Result] = await self._messages.settle(REF, verdicts)
        self._tracing.settle(request, REF, verdicts, results)
        return results


class Traced:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)

    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        [span] = [each for each in self.spans() if each.name == name]
        return span


def memory() -> EmbeddedSubject:
    return EmbeddedSubject(lambda dice: MemoryStore(dice, 86_400_000))


def ids(span: ReadableSpan) -> tuple[str, str]:
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def parent_id(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def linked(span: ReadableSpan) -> list[str]:
    return [f"{link.context.span_id:016x}" for link in span.links]


# --- Tracing on ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("8.10")
async def test_one_trace_leads_from_the_producer_to_the_ack() -> None:
    traced = Traced()
    async with memory().open() as hf:
        door = Door(hf, traced.tracing)
        [answer] = await door.enqueue(REQUEST, [Draft(payload=b"12345")])
        [delivery] = await door.claim({})
        await door.settle({}, Settle.ACK, [delivery])
    assert {ids(span)[0] for span in traced.spans()} == {TRACE}
    enqueued, claimed, acked = traced.spans()
    assert [span.name for span in traced.spans()] == ["enqueue payments", "claim payments", "ack payments"]
    assert [span.kind for span in traced.spans()] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]
    assert [parent_id(span) for span in traced.spans()] == [SPAN, ids(enqueued)[1], ids(claimed)[1]]
    # The handler gets the context of the enqueue's span, with the tracestate of the vendor.
    assert delivery.headers["traceparent"] == f"00-{TRACE}-{ids(enqueued)[1]}-01"
    assert delivery.headers["tracestate"] == "vendor=x"
    for span in (enqueued, claimed, acked):
        assert span.attributes is not None
        assert span.attributes["messaging.system"] == "holdfast"
        assert span.attributes["messaging.destination.name"] == "payments"
        assert span.attributes["holdfast.tenant"] == "acme"
        assert span.attributes["messaging.message.id"] == answer.id
        assert span.attributes["messaging.message.conversation_id"] == answer.correlation_id
    assert [span.attributes["messaging.operation.type"] for span in traced.spans() if span.attributes] == [
        *("send", "receive", "settle")
    ]


async def test_without_a_producer_the_enqueue_begins_the_trace() -> None:
    traced = Traced()
    async with memory().open() as hf:
        door = Door(hf, traced.tracing)
        await door.enqueue({}, [Draft(payload=b"")])
        await door.settle({}, Settle.ACK, await door.claim({}))
    assert len({ids(span)[0] for span in traced.spans()}) == 1
    assert len(traced.spans()) == 3


async def test_claims_and_verdicts_are_linked_to_the_worker_that_made_them() -> None:
    traced = Traced()
    worker = {b"traceparent": WORKER.encode()}
    async with memory().open() as hf:
        door = Door(hf, traced.tracing)
        await door.enqueue(REQUEST, [Draft(payload=b"")])
        await door.settle(worker, Settle.ACK, await door.claim(worker))
    enqueued = traced.named("enqueue payments")
    assert linked(traced.named("claim payments")) == [ids(enqueued)[1], "2" * 16]
    assert linked(traced.named("ack payments")) == ["2" * 16]


async def test_each_attempt_is_a_claim_of_its_own_in_the_same_trace() -> None:
    traced = Traced()
    async with memory().open() as hf:
        door = Door(hf, traced.tracing)
        await door.enqueue(REQUEST, [Draft(payload=b"")])
        await door.settle({}, Settle.NACK, await door.claim({}))
        again = await door.claim({})
        await door.settle({}, Settle.EXTEND, again)
        await door.settle({}, Settle.ACK, again)
    assert [span.name.split()[0] for span in traced.spans()] == ["enqueue", "claim", "nack", "claim", "extend", "ack"]
    assert {ids(span)[0] for span in traced.spans()} == {TRACE}
    second = traced.spans()[3]
    assert second.attributes is not None
    assert second.attributes["holdfast.attempt"] == 2
    assert parent_id(traced.spans()[5]) == ids(second)[1]


async def test_a_message_that_brings_a_context_keeps_it_and_the_enqueue_is_linked() -> None:
    traced = Traced()
    own = {"traceparent": WORKER, "tracestate": "a=b", "x": "y"}
    async with memory().open() as hf:
        door = Door(hf, traced.tracing)
        await door.enqueue(REQUEST, [Draft(payload=b"1", headers=own), Draft(payload=b"2")])
        first, second = await door.claim({})
    assert first.headers == own
    assert second.headers["traceparent"].split("-")[1] == TRACE
    assert linked(traced.named("enqueue payments")) == ["2" * 16]
    assert [ids(span)[0] for span in traced.spans() if span.name == "claim payments"] == ["1" * 32, TRACE]


async def test_a_verdict_of_an_unknown_message_belongs_to_its_caller() -> None:
    traced, fresh = Traced(), Traced()
    async with memory().open() as hf:
        await Door(hf, traced.tracing).enqueue({}, [Draft(payload=b"")])
        deliveries = await Door(hf, traced.tracing).claim({})
        # As another server does, or this one after a restart.
        await Door(hf, fresh.tracing).settle({b"traceparent": WORKER.encode()}, Settle.ACK, deliveries)
    [span] = fresh.spans()
    assert ids(span)[0] == "1" * 32


async def test_refused_calls_are_reported_by_their_code_alone() -> None:
    traced = Traced()
    async with memory().open(max_payload=3) as hf:
        door = Door(hf, traced.tracing)
        with pytest.raises(PayloadTooLarge):
            await door.enqueue(REQUEST, [Draft(payload=b"1234")])
        await door.enqueue(REQUEST, [Draft(payload=b"")])
        deliveries = await door.claim({})
        await door.settle({}, Settle.ACK, deliveries)
        await door.settle(REQUEST, Settle.ACK, deliveries)
    failed = [span for span in traced.spans() if not span.status.is_ok]
    assert [span.attributes["error.type"] for span in failed if span.attributes] == ["payload_too_large", "stale_lease"]
    assert all(not span.events for span in traced.spans())


async def test_what_is_remembered_of_messages_in_flight_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "_MAX_REMEMBERED", 10)
    traced = Traced()
    async with memory().open() as hf:
        door = Door(hf, traced.tracing)
        await door.enqueue(REQUEST, [Draft(payload=b"")] * 50)
        deliveries = await door.claim({}, limit=50)
        assert len(traced.tracing._in_flight) == 10
        await door.settle({}, Settle.ACK, deliveries)
        assert not traced.tracing._in_flight


async def test_what_is_not_sampled_is_carried_all_the_same() -> None:
    tracing = Tracing(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    async with memory().open() as hf:
        door = Door(hf, tracing)
        await door.enqueue({b"traceparent": GIVEN.encode()}, [Draft(payload=b"")])
        [delivery] = await door.claim({})
    parent = parse_parent(delivery.headers["traceparent"])
    assert parent is not None
    assert (parent.trace_id, parent.flags) == (TRACE, "00")


# --- Tracing off ---------------------------------------------------------------------------------------------------


async def test_without_tracing_the_context_given_still_reaches_the_handler() -> None:
    async with memory().open() as hf:
        door = Door(hf, Tracing())
        await door.enqueue(REQUEST, [Draft(payload=b"", headers={"x": "y"}), Draft(payload=b"")])
        await door.enqueue({}, [Draft(payload=b"")])
        first, second, third = await door.claim({})
        await door.settle(REQUEST, Settle.ACK, [first])
    assert first.headers == {"x": "y", "traceparent": GIVEN, "tracestate": "vendor=x"}
    assert second.headers == {"traceparent": GIVEN, "tracestate": "vendor=x"}
    assert third.headers == {}


async def test_a_messages_own_context_wins_unless_it_is_none() -> None:
    async with memory().open() as hf:
        door = Door(hf, Tracing())
        broken = {"traceparent": "broken", "tracestate": "left=over"}
        request = {b"traceparent": GIVEN.encode()}
        await door.enqueue(request, [Draft(payload=b"", headers={"traceparent": WORKER})])
        await door.enqueue(request, [Draft(payload=b"", headers=broken)])
        first, second = await door.claim({})
    assert first.headers == {"traceparent": WORKER}
    assert second.headers == {"traceparent": GIVEN}


def test_without_a_context_the_drafts_are_left_alone() -> None:
    drafts = [Draft(payload=b"", headers={"x": "y"})]
    with Tracing().enqueue({b"traceparent": b"\xff\xfe broken"}, REF, drafts) as (carrying, tell):
        assert carrying is drafts
        tell([])


# --- The W3C form --------------------------------------------------------------------------------------------------

BROKEN = [
    "",
    "00",
    GIVEN.upper(),
    GIVEN[:-1],
    GIVEN + "0",
    GIVEN + "-x",
    GIVEN.replace("-", "_"),
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE}-{SPAN}-0g",
    f"00-{TRACE}-{SPAN}-01\nforged: 1",
    "\u0660" * 55,
    f"01-{TRACE}-{SPAN}-01-" + "x" * 1_000,
]


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_not_of_the_form_is_no_context(text: str) -> None:
    assert parse_parent(text) is None


def test_a_context_is_spelled_as_it_was_given() -> None:
    parent = parse_parent(f" {GIVEN} ", "a=1,b=2")
    assert parent is not None
    assert (parent.traceparent, parent.tracestate) == (GIVEN, "a=1,b=2")


def test_a_later_version_is_passed_on_as_far_as_it_is_known() -> None:
    parent = parse_parent(f"cc-{TRACE}-{SPAN}-f1-what-else")
    assert parent is not None
    assert parent.traceparent == GIVEN


@pytest.mark.parametrize("state", ["x" * 513, "no-equals", "a=\n", "a=\x00", "\u2028=1"])
def test_a_broken_state_is_dropped_and_the_context_kept(state: str) -> None:
    parent = parse_parent(GIVEN, state)
    assert parent is not None
    assert parent.tracestate == ""


# --- From the environment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"},
    ],
)
def test_tracing_is_off_unless_it_is_asked_for(environment: dict[str, str]) -> None:
    assert not tracing_from(environment).is_on


@pytest.mark.parametrize(
    "environment",
    [{"OTEL_TRACES_EXPORTER": "console"}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}],
)
def test_tracing_is_on_when_it_is_asked_for(environment: dict[str, str]) -> None:
    tracing = tracing_from(environment)
    try:
        assert tracing.is_on
    finally:
        tracing.shut_down()


def test_an_unknown_exporter_is_said_and_tracing_is_off(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert not tracing_from({"OTEL_TRACES_EXPORTER": "zipkin\nforged"}).is_on
    assert "OTEL_TRACES_EXPORTER" in caplog.text
    assert "forged" not in caplog.text


def test_without_the_extra_it_is_said_what_to_install(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert not tracing_from({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}).is_on
    assert "holdfast[otel]" in caplog.text
