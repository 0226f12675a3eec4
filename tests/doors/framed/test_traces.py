"""A trace crosses the queue over the framed protocol, too (SPEC 1.5, 8.10), also through a door process."""

from collections.abc import AsyncIterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.telemetry.trace import Tracing
from holdfast.testing import ManualClock
from holdfast.wire.framed import answers
from holdfast.wire.framed.frames import FrameKind
from tests.doors.framed.frames_by_hand import ask, greeted
from tests.doors.framed.serving import FramedServer, serve_framed

TRACE = "0af7651916cd43dd8448eb211c80319c"
CONTEXT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(params=[False, True], ids=["one process", "door process"])
async def traced(request: pytest.FixtureRequest, spans: InMemorySpanExporter) -> AsyncIterator[FramedServer]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with serve_framed(ManualClock(), tracing=Tracing(provider), is_relayed=request.param) as server:
        yield server


def traces(spans: InMemorySpanExporter) -> dict[str, set[str]]:
    """The names of the finished spans, by their trace."""
    found: dict[str, set[str]] = {}
    for span in spans.get_finished_spans():
        context = span.get_span_context()
        assert context is not None
        found.setdefault(f"{context.trace_id:032x}", set()).add(span.name)
    return found


async def test_a_traceparent_given_at_enqueue_reaches_the_handler_without_tracing() -> None:
    async with serve_framed(ManualClock()) as server, greeted(server.port) as peer:
        await peer.call("enqueue", "acme", "jobs", CONTEXT, [[b"x"]])
        [delivery] = await peer.claim()
        assert delivery.headers["traceparent"] == CONTEXT["traceparent"]


async def test_one_trace_runs_from_enqueue_to_ack(traced: FramedServer, spans: InMemorySpanExporter) -> None:
    async with greeted(traced.port) as peer:
        await peer.call("enqueue", "acme", "jobs", CONTEXT, [[b"x"]])
        [delivery] = await peer.claim()
        await peer.settle(["ack", delivery.receipt])
    assert traces(spans) == {TRACE: {"enqueue jobs", "claim jobs", "ack jobs"}}
    assert delivery.headers["traceparent"].split("-")[1] == TRACE


async def test_an_upload_and_a_subscriber_are_in_the_trace_too(
    traced: FramedServer, spans: InMemorySpanExporter
) -> None:
    async with greeted(traced.port) as peer:
        upload = peer.open("upload", "acme", "jobs", CONTEXT, [b""])
        peer.write(FrameKind.DATA, upload, b"x")
        peer.write(FrameKind.END, upload)
        while (frame := await peer.next_of(upload))[0] != FrameKind.RESULT:
            assert frame[0] == FrameKind.CREDIT
        subscription = peer.open("subscribe", "acme", "jobs", None, ask(), 1)
        kind, _, body = await peer.next_of(subscription)
        assert kind == FrameKind.ITEM
        [delivery] = answers.read_claimed(body).deliveries
        exchanged = await peer.call("exchange", "acme", "jobs", None, [1], [["ack", delivery.receipt]])
        assert [result.ok for result in answers.read_claimed(exchanged).results] == [True]
    assert traces(spans) == {TRACE: {"enqueue jobs", "claim jobs", "ack jobs"}}
