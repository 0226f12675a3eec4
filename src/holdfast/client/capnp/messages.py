"""Messages over Cap'n Proto: the calls of `client.transport.Messages`."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec

from holdfast.client.capnp.calls import Calls, Request
from holdfast.client.capnp.shapes import (
    deliveries_of,
    enqueued_of,
    results_of,
    write_ask,
    write_drafts,
    write_ref,
    write_verdicts,
)
from holdfast.client.capnp.unsettled import Unsettled
from holdfast.client.capnp.uploads import CapnpUpload
from holdfast.client.clarify import clarify
from holdfast.client.http.coalesce import Coalescer
from holdfast.client.remote import check_exchange, with_waited
from holdfast.client.transport import Operations, Upload
from holdfast.clock import steady_s
from holdfast.forking import listen_for_forks
from holdfast.model.answers import Delivery, Enqueued, Exchanged, Part, Result
from holdfast.model.checks import check_integer
from holdfast.model.durations import MAX_MS
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, Receipt, check_draft, check_drafts
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Settle, Verdict, check_ask, check_verdicts

# The server knows how large a payload may be.
_ANY_SIZE = 1 << 62
# Larger ones go alone: nobody is to wait for them.
_ALONE_ABOVE = 64 << 10
_MESSAGE_BYTES = 256
# The longest wait that has a number on this wire.
_LONGEST_MS = 0xFFFF_FFFE


class CapnpMessages:
    def __init__(self, calls: Calls, operations: Operations, wait_round_ms: int | None) -> None:
        self._calls = calls
        self._operations = operations
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
                self._calls.spawn,
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
        return enqueued_of(await self._calls.ask(request))

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> Upload:
        """Refused as soon as it is too large, whatever its size was said to be."""
        check_draft(draft, _ANY_SIZE)
        return CapnpUpload(self._calls, ref, draft)

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
                answer = await (self._calls.ask_for_ever(request) if wait_ms is None else self._calls.ask(request))
            except StoreUnavailable:
                if round_ms != 0 and self._calls.is_closed:
                    return []  # closing lets those who wait go with nothing
                raise
            deliveries = deliveries_of(answer)
            if deliveries or round_ms == wait_ms:
                return deliveries
            if until_s is not None:
                wait_ms = max(0, int((until_s - steady_s()) * 1_000))

    async def exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask, wait_ms: int | None = 0) -> Exchanged:
        check_exchange(verdicts, ask, wait_ms)
        exchanged = await self._exchange(ref, verdicts, ask)
        return await with_waited(exchanged, wait_ms, lambda: self.claim(ref, ask, wait_ms))

    async def _exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask) -> Exchanged:
        told = await self._calls.tell(self._poll(ref, ask, 0, verdicts))
        results = results_of(told.answer)
        if told.is_unsure:
            results = [await clarify(self._operations, ref, *pair) for pair in zip(verdicts, results, strict=True)]
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
            while not self._calls.is_closed:
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
                self._calls.spawn(self._give_back(ref, unseen))

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
                self._calls.spawn,
                lambda: self._verdicts.pop(ref, None),
            )
        return [await coalescer.add(verdicts[0])]

    async def _settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool = False) -> list[Result]:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            write_verdicts(request, verdicts)

        told = await self._calls.tell(Request("settle", fill, is_last=is_last))
        results = results_of(told.answer)
        if told.is_unsure:
            results = [await clarify(self._operations, ref, *pair) for pair in zip(verdicts, results, strict=True)]
        self._note(ref, verdicts, results)
        return results

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Part:
        def fill(request: Any) -> None:
            write_ref(request, ref)
            request.receipt = str(receipt)
            request.offset = offset
            request.limit = limit

        answer = await self._calls.ask(Request("readPart", fill))
        return Part(answer.data, answer.total, answer.correlationId)
