"""Messages over HTTP: the calls of `client.transport.Messages`, as requests."""

from collections.abc import AsyncIterator
from functools import partial

import msgspec

from holdfast.client.http.calls import Calls, Request
from holdfast.client.http.claims import Claims
from holdfast.client.http.coalesce import Coalescer
from holdfast.client.http.connection import Answer
from holdfast.client.http.failures import strange_answer
from holdfast.client.http.shapes import enqueued_of
from holdfast.client.http.streams import stream
from holdfast.client.http.uploads import PATH, Form, HttpUpload
from holdfast.client.http.verdicts import Verdicts
from holdfast.client.transport import Operations
from holdfast.forking import listen_for_forks
from holdfast.model.answers import Delivery, Enqueued, Exchanged, Part, Result
from holdfast.model.message import Draft, Receipt, check_draft, check_drafts
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Verdict
from holdfast.wire.http import PAYLOAD_BYTES, EnqueueAnswer, EnqueueRequest, PayloadRequest, encode
from holdfast.wire.http_drafts import is_json, message_in

# Larger ones go alone and as they are: base64 would make them a third larger.
_PARTS_ABOVE = 64 << 10
# The server knows how large a payload may be.
_ANY_SIZE = 1 << 62

_enqueued = msgspec.json.Decoder(EnqueueAnswer)


class HttpMessages:
    def __init__(self, calls: Calls, operations: Operations, wait_round_ms: int | None) -> None:
        self._calls = calls
        self._verdicts = Verdicts(calls, operations)
        self._claims = Claims(calls, self._verdicts, wait_round_ms)
        self._wait_round_ms = wait_round_ms
        # By queue, and by whether the messages have keys: only a request all of whose messages do may be repeated.
        self._enqueues: dict[tuple[QueueRef, bool], Coalescer[Draft, Enqueued]] = {}
        listen_for_forks(self)

    def forked(self) -> None:
        """Requests that callers shared are under way in the parent: nobody here would end them."""
        self._verdicts.forked()
        self._enqueues.clear()

    # --- Enqueue ---------------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        if not drafts:
            return []
        check_drafts(drafts, _ANY_SIZE)
        if len(drafts) > 1:
            return await self._enqueue(ref, drafts)
        [draft] = drafts
        if len(draft.payload) > _PARTS_ABOVE:
            return await (self._enqueue(ref, drafts) if is_json(draft) else self._enqueue_parts(ref, draft))
        key = ref, draft.key is not None
        coalescer = self._enqueues.get(key)
        if coalescer is None:
            coalescer = self._enqueues[key] = Coalescer(
                partial(self._enqueue, ref, is_shared=True),
                _size_of,
                self._calls.spawn,
                lambda: self._enqueues.pop(key, None),
            )
        return [await coalescer.add(draft)]

    async def _enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool = False) -> list[Enqueued]:
        document = EnqueueRequest(tenant=ref.tenant, queue=ref.queue, messages=[message_in(each) for each in drafts])
        request = Request(
            "POST",
            PATH,
            [encode(document)],
            is_repeatable=all(draft.key is not None for draft in drafts),
            is_shared=is_shared and len(drafts) > 1,
        )
        return self._enqueued_of(await self._calls.ask(request))

    async def _enqueue_parts(self, ref: QueueRef, draft: Draft) -> list[Enqueued]:
        form = Form(ref, draft)
        request = Request(
            "POST",
            PATH,
            [form.before, draft.payload, form.after],
            content_type=form.content_type,
            is_repeatable=draft.key is not None,
        )
        return self._enqueued_of(await self._calls.ask(request))

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> HttpUpload:
        """Nothing is sent before its first byte is written."""
        check_draft(draft, _ANY_SIZE)
        return HttpUpload(self._calls, ref, draft, size)

    def _enqueued_of(self, answer: Answer) -> list[Enqueued]:
        try:
            return [enqueued_of(each) for each in _enqueued.decode(answer.body).messages]
        except msgspec.DecodeError:
            raise strange_answer(self._calls.url) from None

    # --- Claims and verdicts ---------------------------------------------------------------------------------------

    async def claim(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> list[Delivery]:
        return await self._claims.claim(ref, ask, wait_ms)

    async def exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask, wait_ms: int | None = 0) -> Exchanged:
        return await self._claims.exchange(ref, verdicts, ask, wait_ms)

    def stream(self, ref: QueueRef, ask: Ask, prefetch: int) -> AsyncIterator[Delivery]:
        return stream(self._calls, self._verdicts, ref, ask, prefetch, self._wait_round_ms)

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        return await self._verdicts.settle(ref, verdicts)

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Part:
        document = PayloadRequest(tenant=ref.tenant, queue=ref.queue, receipt=str(receipt), offset=offset, limit=limit)
        answer = await self._calls.ask(Request("POST", "/v1/queue/payload", [encode(document)]))
        total = answer.headers.get(PAYLOAD_BYTES.lower().encode(), b"")
        if not total.isdigit():
            raise strange_answer(self._calls.url)
        return Part(answer.body, int(total), answer.headers.get(b"x-correlation-id", b"").decode("latin-1"))


def _size_of(draft: Draft) -> int:
    return len(draft.payload) + 256
