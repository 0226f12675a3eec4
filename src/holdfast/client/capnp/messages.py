"""Messages over Cap'n Proto: what `client.transport.Messages` asks for, as calls."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec

from holdfast.client.capnp.calls import Calls, Request
from holdfast.client.capnp.operating import Operating, filter_in
from holdfast.client.capnp.shapes import (
    deliveries_of,
    enqueued_of,
    results_of,
    stats_of,
    write_ask,
    write_drafts,
    write_ref,
    write_verdicts,
)
from holdfast.client.capnp.unsettled import Unsettled
from holdfast.client.capnp.uploads import CapnpUpload
from holdfast.client.clarify import clarify
from holdfast.client.http.coalesce import Coalescer
from holdfast.client.transport import Upload
from holdfast.clock import steady_s
from holdfast.forking import listen_for_forks
from holdfast.model.answers import Delivery, Enqueued, Events, Exchanged, Info, LedgerEntry, Page, Part, Result, Stats
from holdfast.model.checks import check_integer, check_text
from holdfast.model.durations import MAX_MS
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import check_position
from holdfast.model.ids import parse_id
from holdfast.model.message import MAX_BATCH, Draft, Receipt, State, check_draft, check_drafts
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Filter, Settle, StateChange, Verdict, check_ask, check_verdicts
from holdfast.wire import operations as wire

# The server knows how large a payload may be.
_ANY_SIZE = 1 << 62
# Larger ones go alone: nobody is to wait for them.
_ALONE_ABOVE = 64 << 10
_MESSAGE_BYTES = 256
# The longest wait that has a number on this wire.
_LONGEST_MS = 0xFFFF_FFFE


class CapnpMessages(Operating):
    def __init__(self, calls: Calls, wait_round_ms: int | None) -> None:
        super().__init__(calls)
        self._wait_round_ms = wait_round_ms
        # Calls of one message each that share a request: by queue, and by whether the messages have keys, for only a
        # request all of whose messages do may be repeated.
        self._enqueues: dict[tuple[QueueRef, bool], Coalescer[Draft, Enqueued]] = {}
        self._verdicts: dict[QueueRef, Coalescer[Verdict, Result]] = {}
        # The streams that are read from a queue now.
        self._streams: dict[QueueRef, set[Unsettled]] = {}
        listen_for_forks(self)

    def forked(self) -> None:
        """Requests that callers shared are under way in the parent: nobody here would end them."""
        self._enqueues.clear()
        self._verdicts.clear()
        self._streams.clear()

    # --- Enqueue -------------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        if not drafts:
            return []
        check_drafts(drafts, _ANY_SIZE)

        if len(drafts) > 1 or len(drafts[0].payload) > _ALONE_ABOVE:
            return await self._enqueue(ref, drafts)
        [draft] = drafts
        key = ref, draft.key is not None
        coalescer = self._enqueues.get(key)
        if coalescer is None:
            coalescer = self._enqueues[key] = Coalescer(
                partial(self._enqueue, ref, is_shared=True),
                lambda draft: len(draft.payload) + _MESSAGE_BYTES,
                self.calls.spawn,
                lambda: self._enqueues.pop(key, None),
            )
        return [await coalescer.add(draft)]

    async def _enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool = False) -> list[Enqueued]:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_drafts(request, drafts)

        # Only messages that all have keys may be sent again.
        is_repeatable = all(draft.key is not None for draft in drafts)
        request = Request("add", fill, is_repeatable=is_repeatable, is_shared=is_shared)
        return enqueued_of(await self.calls.ask(request))

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> Upload:
        """Refused as soon as it is too large, whatever its size was said to be."""
        check_draft(draft, _ANY_SIZE)
        return CapnpUpload(self.calls, ref, draft)

    # --- Claims --------------------------------------------------------------------------------------------------

    async def claim(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> list[Delivery]:
        """One poll after the other until something comes or the wait is over: a connection that died unnoticed keeps a
        claim from its messages for a round at most."""
        check_ask(ask)
        if wait_ms is not None:
            check_integer("wait", wait_ms, 0, MAX_MS)
        until_s = None if wait_ms is None else steady_s() + wait_ms / 1_000
        while True:
            round_ms = self._round_ms(wait_ms)
            request = self._poll(ref, ask, round_ms, [])
            try:
                answer = await (self.calls.ask_for_ever(request) if wait_ms is None else self.calls.ask(request))
            except StoreUnavailable:
                if round_ms != 0 and self.calls.is_closed:
                    return []  # closing lets those who wait go with nothing
                raise
            deliveries = deliveries_of(answer)
            if deliveries or round_ms == wait_ms:
                return deliveries
            if until_s is not None:
                wait_ms = max(0, int((until_s - steady_s()) * 1_000))

    async def exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask) -> Exchanged:
        check_ask(ask)
        check_verdicts(verdicts)
        told = await self.calls.tell(self._poll(ref, ask, 0, verdicts))
        results = results_of(told.answer)
        if told.is_unsure:
            results = [await clarify(self, ref, *pair) for pair in zip(verdicts, results, strict=True)]
        self._note(ref, verdicts, results)
        return Exchanged(results, deliveries_of(told.answer))

    async def stream(self, ref: QueueRef, ask: Ask, prefetch: int) -> AsyncIterator[Delivery]:
        """At most `prefetch` are in the reader's hands or on their way there. What it did not take is given back when
        it leaves."""
        check_ask(ask)
        unsettled = Unsettled(prefetch, ask.lease_ms)
        streams = self._streams.setdefault(ref, set())
        streams.add(unsettled)
        unseen: list[Delivery] = []
        try:
            while not self.calls.is_closed:
                room = unsettled.room()
                if not room:
                    await unsettled.wait_for_change()
                    continue
                unseen = await self.claim(ref, msgspec.structs.replace(ask, limit=room), None)
                unsettled.add(unseen)
                read_at = steady_s()
                while unseen:
                    delivery = unseen.pop(0)
                    # Its lease may have run out while it waited for the reader, as far as this machine can tell.
                    if ask.lease_ms is None or (steady_s() - read_at) * 1_000 < ask.lease_ms:
                        yield delivery
        finally:
            streams.discard(unsettled)
            if not streams:
                self._streams.pop(ref, None)
            if unseen:
                self.calls.spawn(self._give_back(ref, unseen))

    def let_go(self) -> None:
        """Streams that wait for room come to their end: this client is closed."""
        for streams in self._streams.values():
            for unsettled in streams:
                unsettled.let_go()

    def _note(self, ref: QueueRef, verdicts: list[Verdict], results: list[Result]) -> None:
        for unsettled in self._streams.get(ref, ()):
            unsettled.note(verdicts, results)

    def _round_ms(self, wait_ms: int | None) -> int | None:
        if wait_ms is None or wait_ms == 0:
            return self._wait_round_ms if wait_ms is None else 0
        return min(wait_ms, _LONGEST_MS if self._wait_round_ms is None else self._wait_round_ms)

    def _poll(self, ref: QueueRef, ask: Ask, wait_ms: int | None, verdicts: list[Verdict]) -> Request:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_ask(request, ask, wait_ms)
            if verdicts:
                write_verdicts(request, verdicts)

        async def give_back(answer: Any) -> None:
            # What is claimed under a number stays claimed: whoever left reads it again by its number.
            if ask.ledger is None:
                await self._give_back(ref, deliveries_of(answer))

        return Request("poll", fill, wait_ms=wait_ms, heard_late=give_back)

    async def _give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """What its caller never saw: as if it had not been claimed."""
        if deliveries:
            unseen = [Verdict(settle=Settle.UNSEND, receipt=delivery.receipt) for delivery in deliveries]
            await self._settle(ref, unseen, is_last=True)

    # --- Verdicts ------------------------------------------------------------------------------------------------

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        check_verdicts(verdicts)
        if len(verdicts) != 1:
            return await self._settle(ref, verdicts)
        coalescer = self._verdicts.get(ref)
        if coalescer is None:
            coalescer = self._verdicts[ref] = Coalescer(
                partial(self._settle, ref),
                lambda verdict: _MESSAGE_BYTES + len(verdict.error or ""),
                self.calls.spawn,
                lambda: self._verdicts.pop(ref, None),
            )
        return [await coalescer.add(verdicts[0])]

    async def _settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool = False) -> list[Result]:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_verdicts(request, verdicts)

        told = await self.calls.tell(Request("settle", fill, is_last=is_last))
        results = results_of(told.answer)
        if told.is_unsure:
            results = [await clarify(self, ref, *pair) for pair in zip(verdicts, results, strict=True)]
        self._note(ref, verdicts, results)
        return results

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Part:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            request.receipt = str(receipt)
            request.offset = offset
            request.limit = limit

        answer = await self.calls.ask(Request("readPart", fill))
        return Part(answer.data, answer.total, answer.correlationId)

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange) -> str | None:
        document = msgspec.UNSET if change.document is None else msgspec.Raw(change.document)
        given = wire.SaveState(receipt=str(receipt), document=document, etag=change.etag, progress=change.progress)
        # A document saved twice would meet the ETag of its own first try.
        is_repeatable = change.document is None
        return (await self.operate("save_state", ref, given, wire.EtagAnswer, is_repeatable=is_repeatable)).etag

    # --- Inspection ----------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: object, *, with_payload: bool = False) -> Info:
        return await self.operate("get", ref, wire.Get(id=parse_id(id), payload=with_payload), Info)

    async def peek(self, ref: QueueRef, limit: int) -> list[Info]:
        check_integer("limit", limit, 1, MAX_BATCH)
        return await self.operate("peek", ref, wire.Peek(limit=limit), list[Info])

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
        given = wire.Browse(
            state=state,
            filter=filter_in(which),
            cursor=None if cursor is None else str(parse_id(cursor)),
            limit=limit,
            payload=with_payload,
        )
        found = await self.operate("browse", ref, given, wire.PageAnswer)
        page: Page[Info] = Page(found.messages)
        page.cursor = found.cursor
        return page

    async def stats(self, ref: QueueRef) -> Stats:
        return stats_of((await self.calls.ask(Request("stats", lambda request: write_ref(request, ref)))).stats)

    async def journal(self, after: str | None, limit: int, tenant: str | None) -> Events:
        check_integer("limit", limit, 1, MAX_BATCH)
        check_position(after)
        given = wire.Journal(after=after, limit=limit, tenant=tenant)
        found = await self.operate("journal", QueueRef(), given, wire.EventsAnswer)
        events = Events(found.events)
        events.next = found.next
        return events

    # --- The claim ledger ----------------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, consumer: str, number: int | None = None) -> list[LedgerEntry]:
        check_text("consumer", consumer)
        return await self.operate("ledger", ref, wire.Ledger(consumer=consumer, number=number), list[LedgerEntry])

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int) -> list[Result]:
        check_text("consumer", consumer)
        check_integer("upto", upto, 0, MAX_MS)
        return await self.operate("ledger_ack", ref, wire.LedgerAck(consumer=consumer, upto=upto), list[Result])

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None) -> list[Result]:
        check_text("consumer", consumer)
        if lease_ms is not None:
            check_integer("lease", lease_ms, 1, MAX_MS)
        given = wire.LedgerExtend(consumer=consumer, lease_ms=lease_ms)
        return await self.operate("ledger_extend", ref, given, list[Result])
