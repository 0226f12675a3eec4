"""The producer's trace travels with its messages."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.testing import ManualClock
from tests.doors.serving import serve


def span(number: int, **state: str) -> NonRecordingSpan:
    return NonRecordingSpan(
        SpanContext(
            number, number + 1, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState(state.items())
        )
    )


def parent(number: int) -> str:
    return f"00-{number:032x}-{number + 1:016x}-01"


@pytest.fixture(params=["embedded", "served"])
async def hf(request: pytest.FixtureRequest) -> AsyncIterator[AsyncHoldfast]:
    if request.param == "embedded":
        async with holdfast.open_async("memory://") as hf:
            yield hf
        return
    async with serve(ManualClock()) as server, holdfast.open_async(server.url) as hf:
        yield hf


async def test_a_message_enqueued_in_a_span_carries_it_and_one_with_its_own_keeps_that(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    with trace.use_span(span(7, vendor="x")):
        await q.enqueue(1, headers={"a": "b"})
        await q.enqueue(2, headers={"traceparent": parent(9)})
    await q.enqueue(3)
    first, second, third = await q.claim(limit=3)
    assert first.headers == {"a": "b", "traceparent": parent(7), "tracestate": "vendor=x"}
    assert second.headers == {"traceparent": parent(9)}
    assert third.headers == {}


async def test_callers_that_share_a_request_keep_their_own_traces(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")

    async def produce(number: int) -> None:
        with trace.use_span(span(number)):
            await q.enqueue(number)

    await asyncio.gather(*(produce(number) for number in range(1, 20)))
    messages = await q.claim(limit=20)
    assert [each.headers["traceparent"] for each in messages] == [parent(each.json()) for each in messages]
