"""Handle `subscribe` and `watch`, whose responses continue until the caller leaves."""

import asyncio
from typing import Protocol

import msgspec

from holdfast.doors.http.calls import HttpCall
from holdfast.doors.http.connections.presence import Presence
from holdfast.doors.http.operations.messages import settle
from holdfast.doors.http.operations.multipart import PartStream
from holdfast.doors.http.operations.shapes import verdicts_of
from holdfast.doors.http.request_bodies import decode
from holdfast.model.answers import Delivery
from holdfast.model.errors import QueueNotFound
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import QueueRef
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import ClaimRequest
from holdfast.wire.http.bodies import ResultOut, SubscribeRequest, encode
from holdfast.wire.http.shapes import delivery_out
from holdfast.wire.operations import STATS
from holdfast.wire.requests import Nothing

_subscribe = msgspec.json.Decoder(SubscribeRequest)

# Proxies close idle connections, so a watch sends a comment at this interval.
_KEEP_ALIVE_S = 15.0


class _Stream(Protocol):
    """A response that carries deliveries one by one."""

    async def start(self) -> None: ...

    async def send(self, delivery: Delivery) -> None: ...

    async def send_results(self, results: list[ResultOut]) -> None: ...

    async def end(self) -> None: ...


class _LineStream:
    """An NDJSON response with one delivery per line."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call

    async def start(self) -> None:
        await self._call.start_stream([(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")])

    async def send(self, delivery: Delivery) -> None:
        await self._call.stream(encode(delivery_out(delivery)) + b"\n")

    async def send_results(self, results: list[ResultOut]) -> None:
        await self._call.stream(encode({"results": results}) + b"\n")

    async def end(self) -> None:
        await self._call.end_stream()


async def subscribe(call: HttpCall) -> None:
    """Handle `POST /v1/queue/subscribe`."""
    await _subscribe_to(call, with_state=False)


async def subscribe_with_state(call: HttpCall) -> None:
    """Handle `POST /v1/queue/subscribeWithState`."""
    await _subscribe_to(call, with_state=True)


async def _subscribe_to(call: HttpCall, *, with_state: bool) -> None:
    request = decode(_subscribe, await call.body())
    call.check_can_stream()
    ref = call.ref(request.tenant, request.queue)
    check_integer("prefetch", request.prefetch, 1, MAX_BATCH)
    if request.wait_ms is not None:
        check_integer("wait_ms", request.wait_ms, 0, MAX_MS)
    limit = request.prefetch if request.limit is None else request.limit
    verdicts = verdicts_of(request.verdicts or ())
    sends_parts = call.head.wants_parts
    claim_request = ClaimRequest(
        limit=limit,
        lease_ms=request.lease_ms,
        owner=request.owner,
        with_state=with_state,
        streams=sends_parts or request.payloads_apart,
    )
    subscription = await call.session.subscribe(
        ref, claim_request, request.prefetch, releases_at_end=request.release_on_leave
    )
    presence = Presence(call)
    stream: _Stream = PartStream(call, ref) if sends_parts else _LineStream(call)
    unsent: list[Delivery] = []

    try:
        results = await settle(call, ref, verdicts) if verdicts else []
        await stream.start()
        if results:
            await stream.send_results(results)
        while True:
            unsent = await presence.wait(subscription.next(request.wait_ms), subscription.give_back)
            if not unsent:  # the wait timed out, or the server is shutting down
                await stream.end()
                return
            call.note_deliveries(ref, unsent)
            while unsent:
                await stream.send(unsent[0])
                del unsent[0]
    finally:
        presence.close()
        subscription.give_back(unsent)
        await asyncio.shield(subscription.end())


async def watch(call: HttpCall) -> None:
    """Handle `GET /v1/queue/watch`: send `available` when messages can be claimed, also for those ready now."""
    fields = call.query("tenant", "queue")
    ref = call.ref(fields.get("tenant"), fields.get("queue"))
    call.check_can_stream()
    watch = await call.session.watch(ref)
    presence = Presence(call)
    try:
        await call.start_stream([(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")])
        await call.stream(b": watching\n\n")
        while True:
            ready = await _ready(call, ref)
            if ready:
                document = encode({"tenant": ref.tenant, "queue": ref.queue, "ready": ready})
                await call.stream(b"event: available\ndata: " + document + b"\n\n")
            while not await presence.wait(watch.next(int(_KEEP_ALIVE_S * 1_000)), _nothing):
                if watch.is_closed:
                    await call.end_stream()
                    return
                await call.stream(b": still here\n\n")
    finally:
        presence.close()
        watch.close()


def _nothing(result: bool) -> None:
    """Undo nothing: a wait has no effect."""


async def _ready(call: HttpCall, ref: QueueRef) -> int:
    try:
        return (await call.session.call(STATS, ref, Nothing())).ready
    except QueueNotFound:
        return 0
