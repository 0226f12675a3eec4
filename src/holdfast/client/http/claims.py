"""Claims over HTTP: long polls in rounds, and nothing stranded by a caller that leaves."""

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET

from holdfast.client.http.calls import Calls, Request
from holdfast.client.http.connection import Answer
from holdfast.client.http.failures import answer_error, strange_answer
from holdfast.client.http.shapes import verdict_in
from holdfast.client.http.verdicts import Verdicts
from holdfast.client.remote import check_exchange, with_waited
from holdfast.clock import steady_s
from holdfast.model.answers import Delivery, Exchanged
from holdfast.model.checks import check_integer
from holdfast.model.durations import MAX_MS
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Settle, Verdict, check_ask
from holdfast.wire.http import DequeueAnswer, DequeueRequest, LedgerClaimRequest, VerdictIn, encode
from holdfast.wire.http_shapes import delivery_of, result_of

_dequeued = msgspec.json.Decoder(DequeueAnswer)
# What a dequeue can carry.
RIDING = frozenset({Settle.ACK, Settle.NACK, Settle.RELEASE})


class Claims:
    def __init__(self, calls: Calls, verdicts: Verdicts, wait_round_ms: int | None) -> None:
        self._calls = calls
        self._verdicts = verdicts
        self._wait_round_ms = wait_round_ms

    async def claim(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> list[Delivery]:
        """One request after the other until something comes or the wait is over: a proxy, or a connection that died
        unnoticed, keeps a claim from its messages for a round at most."""
        check_ask(ask)
        if wait_ms is not None:
            check_integer("wait", wait_ms, 0, MAX_MS)
        until_s = None if wait_ms is None else steady_s() + wait_ms / 1_000
        while True:
            round_ms = self._round_ms(wait_ms)
            request = self._request(ref, ask, round_ms, None)
            try:
                told = await (self._calls.ask_for_ever(request) if wait_ms is None else self._calls.tell(request))
            except StoreUnavailable:
                if round_ms != 0 and self._calls.is_closed:
                    return []  # closing lets those who wait go with nothing
                raise
            deliveries = self._exchanged(told.answer).deliveries
            is_whole = round_ms == wait_ms
            if deliveries or is_whole:
                return deliveries
            if until_s is not None:
                wait_ms = max(0, int((until_s - steady_s()) * 1_000))

    async def exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask, wait_ms: int | None) -> Exchanged:
        """Verdicts that ride on a claim. Those that a claim cannot carry go before it."""
        check_exchange(verdicts, ask, wait_ms)
        exchanged = await self._exchange(ref, verdicts, ask)
        return await with_waited(exchanged, wait_ms, lambda: self.claim(ref, ask, wait_ms))

    async def _exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask) -> Exchanged:
        if not verdicts or not all(verdict.settle in RIDING for verdict in verdicts):
            results = await self._verdicts.settle(ref, verdicts) if verdicts else []
            return Exchanged(results, await self.claim(ref, ask, 0))
        told = await self._calls.tell(self._request(ref, ask, 0, [verdict_in(each) for each in verdicts]))
        exchanged = self._exchanged(told.answer, verdicts)
        if told.is_unsure:
            pairs = zip(verdicts, exchanged.results, strict=True)
            exchanged = exchanged._replace(results=[await self._verdicts.clarify(ref, *pair) for pair in pairs])
        return exchanged

    def _round_ms(self, wait_ms: int | None) -> int | None:
        if self._wait_round_ms is None or wait_ms == 0:
            return wait_ms
        return self._wait_round_ms if wait_ms is None else min(wait_ms, self._wait_round_ms)

    def _request(self, ref: QueueRef, ask: Ask, wait_ms: int | None, verdicts: list[VerdictIn] | None) -> Request:
        document = DequeueRequest(
            tenant=ref.tenant,
            queue=ref.queue,
            limit=ask.limit,
            wait_ms=wait_ms,
            lease_ms=ask.lease_ms,
            owner=ask.owner,
            verdicts=verdicts,
            payloads_apart=ask.streams,
        )
        path = "/v1/queue/dequeueWithState" if ask.with_state else "/v1/queue/dequeue"
        if ask.ledger is None:
            return Request("POST", path, [encode(document)], wait_ms=wait_ms, heard_late=partial(self._give_back, ref))
        # What is claimed under a number stays claimed: whoever left reads it again by its number.
        consumer, number = ask.ledger
        numbered = LedgerClaimRequest(
            consumer=consumer, number=number, with_state=ask.with_state, **msgspec.structs.asdict(document)
        )
        return Request("POST", "/v1/queue/ledger/claim", [encode(numbered)], wait_ms=wait_ms)

    async def _give_back(self, ref: QueueRef, answer: Answer) -> None:
        await self._verdicts.give_back(ref, [delivery_of(each) for each in self._document(answer).messages])

    def _exchanged(self, answer: Answer, verdicts: Sequence[Verdict] = ()) -> Exchanged:
        document = self._document(answer)
        results = [] if document.results is UNSET else document.results
        if len(results) != len(verdicts):
            raise strange_answer(self._calls.url)
        return Exchanged(
            [result_of(verdict.settle, result) for verdict, result in zip(verdicts, results, strict=True)],
            [delivery_of(each) for each in document.messages],
        )

    def _document(self, answer: Answer) -> DequeueAnswer:
        if answer.status != 200:
            raise answer_error(self._calls.url, answer)
        try:
            return _dequeued.decode(answer.body)
        except msgspec.DecodeError:
            raise strange_answer(self._calls.url) from None
