"""A trace crosses the queue (SPEC 1.5, 8.10)."""

from collections.abc import AsyncIterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.telemetry.trace import Tracing
from holdfast.testing import ManualClock
from tests.doors.serving import Server, serve

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
QUEUE = {"tenant": "acme", "queue": "jobs"}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def traced(clock: ManualClock, spans: InMemorySpanExporter) -> AsyncIterator[Server]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with serve(clock, tracing=Tracing(provider)) as serving:
        yield serving


@pytest.mark.spec("1.5")
async def test_a_traceparent_given_at_enqueue_reaches_the_handler_without_tracing(server: Server) -> None:
    message = {**QUEUE, "messages": [{"payload": 1}]}
    await server.post("/v1/queue/enqueue", message, headers=PARENT)
    [delivery] = await server.dequeue()
    assert delivery["headers"]["traceparent"] == PARENT["traceparent"]


async def test_a_traceparent_in_no_known_form_is_not_carried(server: Server) -> None:
    message = {**QUEUE, "messages": [{"payload": 1}]}
    await server.post("/v1/queue/enqueue", message, headers={"traceparent": "00-zz-zz-01"})
    [delivery] = await server.dequeue()
    assert delivery["headers"] == {}


@pytest.mark.spec("1.5", "8.10")
async def test_one_trace_runs_from_enqueue_to_ack(traced: Server, spans: InMemorySpanExporter) -> None:
    message = {**QUEUE, "messages": [{"payload": 1}]}
    await traced.post("/v1/queue/enqueue", message, headers=PARENT)
    [delivery] = await traced.dequeue()
    await traced.post("/v1/queue/ack", {**QUEUE, "receipts": [delivery["receipt"]]})
    finished = spans.get_finished_spans()
    assert [span.name for span in finished] == ["enqueue jobs", "claim jobs", "ack jobs"]
    assert {f"{span.get_span_context().trace_id:032x}" for span in finished} == {TRACE}
    assert delivery["headers"]["traceparent"].split("-")[1] == TRACE


async def test_the_compatible_door_and_a_subscriber_are_in_the_trace_too(
    traced: Server, spans: InMemorySpanExporter
) -> None:
    items = [{"namespace": "acme", "topic": "jobs", "payload": "aGk="}]
    await traced.post("/enqueue", items, headers=PARENT)
    async with traced.http.post(f"{traced.url}/v1/queue/subscribe", json={**QUEUE, "prefetch": 1}) as stream:
        assert await stream.content.readline()
    names = [span.name for span in spans.get_finished_spans()]
    assert names == ["enqueue jobs", "claim jobs"]
    assert {f"{span.get_span_context().trace_id:032x}" for span in spans.get_finished_spans()} == {TRACE}
