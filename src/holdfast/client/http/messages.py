"""Messages over HTTP: what `client.transport.Messages` asks for, as requests."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.client.http.calls import Calls, Request
from holdfast.client.http.claims import Claims
from holdfast.client.http.coalesce import Coalescer
from holdfast.client.http.connection import Answer
from holdfast.client.http.failures import strange_answer
from holdfast.client.http.shapes import (
    enqueued_of,
    event_of,
    filter_in,
    info_of,
    is_json,
    ledger_entry_of,
    message_in,
    result_of,
)
from holdfast.client.http.streams import stream
from holdfast.client.http.uploads import PATH, Form, HttpUpload
from holdfast.client.http.verdicts import Verdicts
from holdfast.forking import listen_for_forks
from holdfast.model.answers import Delivery, Enqueued, Events, Exchanged, Info, LedgerEntry, Page, Part, Result, Stats
from holdfast.model.checks import check_integer, check_text
from holdfast.model.durations import MAX_MS
from holdfast.model.events import check_position
from holdfast.model.ids import parse_id
from holdfast.model.message import MAX_BATCH, Draft, Receipt, State, check_draft, check_drafts
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Filter, Settle, StateChange, Verdict
from holdfast.wire.http import (
    PAYLOAD_BYTES,
    EnqueueAnswer,
    EnqueueRequest,
    InfoOut,
    JournalEventOut,
    LedgerAckRequest,
    LedgerAnswer,
    LedgerExtendRequest,
    MessagesAnswer,
    PayloadRequest,
    PeekAnswer,
    ProgressIn,
    SettleAnswer,
    StateAnswer,
    StateRequest,
    encode,
)

T = TypeVar("T")

# Larger ones go alone and as they are: base64 would make them a third larger.
_PARTS_ABOVE = 64 << 10
# The server knows how large a payload may be.
_ANY_SIZE = 1 << 62

_enqueued = msgspec.json.Decoder(EnqueueAnswer)
_settled = msgspec.json.Decoder(SettleAnswer)
_saved = msgspec.json.Decoder(StateAnswer)
_info = msgspec.json.Decoder(InfoOut)
_peeked = msgspec.json.Decoder(PeekAnswer)
_page = msgspec.json.Decoder(MessagesAnswer)
_stats = msgspec.json.Decoder(Stats)
_events = msgspec.json.Decoder(JournalEventOut)
_ledger = msgspec.json.Decoder(LedgerAnswer)


def decode(calls: Calls, decoder: msgspec.json.Decoder[T], answer: Answer) -> T:
    try:
        return decoder.decode(answer.body)
    except msgspec.DecodeError:
        raise strange_answer(calls.url) from None


class HttpMessages:
    def __init__(self, calls: Calls, wait_round_ms: int | None) -> None:
        self._calls = calls
        self._verdicts = Verdicts(calls, self)
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
        return [enqueued_of(each) for each in decode(self._calls, _enqueued, answer).messages]

    # --- Claims and verdicts ---------------------------------------------------------------------------------------

    async def claim(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> list[Delivery]:
        return await self._claims.claim(ref, ask, wait_ms)

    async def exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask) -> Exchanged:
        return await self._claims.exchange(ref, verdicts, ask)

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

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange) -> str | None:
        progress = change.progress
        document = StateRequest(
            tenant=ref.tenant,
            queue=ref.queue,
            receipt=str(receipt),
            document=msgspec.UNSET if change.document is None else msgspec.Raw(change.document),
            etag=change.etag,
            progress=None if progress is None else ProgressIn(percent=progress.percent, text=progress.text),
        )
        # A document saved twice would meet the ETag of its own first try.
        is_repeatable = change.document is None
        request = Request("PUT", "/v1/queue/state", [encode(document)], is_repeatable=is_repeatable)
        return decode(self._calls, _saved, await self._calls.ask(request)).etag

    # --- Inspection ------------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: object, *, with_payload: bool = False) -> Info:
        path = f"{queue_path(ref)}/messages/{parse_id(id)}{'?payload=1' if with_payload else ''}"
        return info_of(decode(self._calls, _info, await self._get(path)))

    async def peek(self, ref: QueueRef, limit: int) -> list[Info]:
        check_integer("limit", limit, 1, MAX_BATCH)
        answer = await self._get(f"{queue_path(ref)}/peek?limit={limit}")
        return [info_of(each) for each in decode(self._calls, _peeked, answer).messages]

    async def browse(
        self,
        ref: QueueRef,
        state: State | None,
        which: Filter,
        cursor: str | None,
        limit: int,
        *,
        with_payload: bool = False,
    ) -> Page[Info]:
        check_integer("limit", limit, 1, MAX_BATCH)
        filter = filter_in(which)
        query = _query(
            state=state,
            cursor=None if cursor is None else str(parse_id(cursor)),
            limit=limit,
            payload=1 if with_payload else None,
            filter=None if filter is None else encode(filter).decode(),
        )
        found = decode(self._calls, _page, await self._get(f"{queue_path(ref)}/messages{query}"))
        page: Page[Info] = Page(info_of(each) for each in found.messages)
        page.cursor = found.cursor
        return page

    async def stats(self, ref: QueueRef) -> Stats:
        return decode(
            self._calls, _stats, await self._get(f"/v1/queue/stats{_query(tenant=ref.tenant, queue=ref.queue)}")
        )

    async def journal(self, after: str | None, limit: int, tenant: str | None) -> Events:
        check_integer("limit", limit, 1, MAX_BATCH)
        check_position(after)
        answer = await self._get(f"/v1/journal{_query(after=after, limit=limit, tenant=tenant)}")
        try:
            events = Events(event_of(each) for each in _events.decode_lines(answer.body))
        except msgspec.DecodeError:
            raise strange_answer(self._calls.url) from None
        events.next = answer.headers.get(b"x-journal-next", b"").decode()
        return events

    async def _get(self, path: str) -> Answer:
        return await self._calls.ask(Request("GET", path, []))

    # --- The claim ledger ------------------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, consumer: str, number: int | None = None) -> list[LedgerEntry]:
        check_text("consumer", consumer)
        query = _query(tenant=ref.tenant, queue=ref.queue, consumer=consumer, number=number)
        answer = await self._get(f"/v1/queue/ledger{query}")
        return [ledger_entry_of(each) for each in decode(self._calls, _ledger, answer).claims]

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int) -> list[Result]:
        check_text("consumer", consumer)
        check_integer("upto", upto, 0, MAX_MS)
        document = LedgerAckRequest(tenant=ref.tenant, queue=ref.queue, consumer=consumer, upto=upto)
        return await self._settle_ledger(Settle.ACK, document)

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None) -> list[Result]:
        check_text("consumer", consumer)
        if lease_ms is not None:
            check_integer("lease", lease_ms, 1, MAX_MS)
        document = LedgerExtendRequest(tenant=ref.tenant, queue=ref.queue, consumer=consumer, lease_ms=lease_ms)
        return await self._settle_ledger(Settle.EXTEND, document)

    async def _settle_ledger(self, verb: Settle, document: Any) -> list[Result]:
        answer = await self._calls.ask(Request("POST", f"/v1/queue/ledger/{verb}", [encode(document)]))
        return [result_of(verb, each) for each in decode(self._calls, _settled, answer).results]


def queue_path(ref: QueueRef) -> str:
    return f"/v1/tenants/{quote(ref.tenant, safe='')}/queues/{quote(ref.queue, safe='')}"


def _query(**fields: object) -> str:
    given = {name: value for name, value in fields.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""


def _size_of(draft: Draft) -> int:
    return len(draft.payload) + 256
