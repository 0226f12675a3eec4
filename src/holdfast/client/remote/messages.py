"""The calls on messages (`client.transport.MessageCalls`) that all protocols share."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Generic, TypeVar

from holdfast.client.remote.calls import AnyRequest, Calls
from holdfast.client.remote.coalesce import Coalescer
from holdfast.client.remote.codec import Codec
from holdfast.client.remote.requests import add_waited_claim, check_exchange
from holdfast.client.remote.streams import PollStream, PollStreams
from holdfast.client.remote.unknown_outcomes import resolve_outcome
from holdfast.client.transport import OperationCalls, TransportUpload
from holdfast.clock import steady_s
from holdfast.forking import listen_for_forks
from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, Receipt, check_draft, check_drafts
from holdfast.model.names import QueueRef
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import ClaimRequest, Settle, Verdict, check_claim_request, check_verdicts

Req = TypeVar("Req", bound=AnyRequest)
Res = TypeVar("Res")

# The client does not limit payloads, because only the server knows its limit.
_ANY_SIZE = 1 << 62
# The size of an item without its payload or its error.
_ITEM_BYTES = 256
# The part of a round in which a wait without messages counts as refused. Timers of a server are not quite exact.
_REFUSED_WITHIN = 0.9
# Queues whose concurrent calls share requests. If one with open calls is forgotten, its calls only share less.
_MAX_COALESCERS = 1_000


class RemoteMessages(Generic[Req, Res]):
    """The calls on messages over one protocol, whose codec writes the requests."""

    def __init__(self, calls: Calls[Req, Res], codec: Codec[Req, Res], operations: OperationCalls) -> None:
        self._calls = calls
        self._codec = codec
        self._operations = operations
        self._wait_round_ms = calls.settings.wait_round_ms
        # By queue, and by whether the messages have keys, because only a request in which all have keys is repeated.
        self._enqueues: dict[tuple[QueueRef, bool], Coalescer[Draft, Enqueued]] = {}
        # By queue, and by kind if a request can carry only one kind.
        self._verdicts: dict[tuple[QueueRef, Settle | None], Coalescer[Verdict, Result]] = {}
        self._streams = PollStreams()
        listen_for_forks(self)

    def forked(self) -> None:
        """Forget the shared requests and streams of the parent, which would never end in this process."""
        self._enqueues.clear()
        self._verdicts.clear()
        self._streams = PollStreams()

    # --- Enqueue ---------------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        if len(drafts) != 1:
            check_drafts(drafts, _ANY_SIZE)
            return await self._enqueue(ref, drafts) if drafts else []
        [draft] = drafts
        check_draft(draft, _ANY_SIZE)
        if len(draft.payload) > self._codec.max_shared_bytes:
            return await self._enqueue(ref, drafts)
        key = ref, draft.key is not None
        coalescer = self._enqueues.get(key)
        if coalescer is None:
            if len(self._enqueues) >= _MAX_COALESCERS:
                self._enqueues.clear()
            coalescer = self._enqueues[key] = self._calls.tasks.coalescer(
                partial(self._enqueue, ref, is_shared=True), _draft_bytes
            )
        return [await coalescer.add(draft)]

    async def _enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool = False) -> list[Enqueued]:
        request = self._codec.enqueue(ref, drafts, is_shared=is_shared and len(drafts) > 1)
        return self._codec.enqueued(await self._calls.send(request))

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> TransportUpload:
        check_draft(draft, _ANY_SIZE)
        return self._codec.upload(ref, draft, size)

    # --- Claims ----------------------------------------------------------------------------------------------------

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        """Claim with one request after another, until there are messages or the wait is over.

        The wait is divided into rounds so that a proxy, or a connection that broke unnoticed, delays a claim by at most
        one round.
        """
        check_claim_request(ask)
        if wait_ms is not None:
            check_integer("wait", wait_ms, 0, MAX_MS)
        calls, codec = self._calls, self._codec
        until_s = None if wait_ms is None else steady_s() + wait_ms / 1_000
        while True:
            round_ms = self._round_ms(wait_ms)
            request = codec.claim(ref, ask, round_ms, [], partial(self._give_back_late, ref, ask))
            try:
                response = await (calls.send_forever(request) if wait_ms is None else calls.send(request))
            except StoreUnavailable:
                if round_ms != 0 and calls.is_closed:
                    return []  # closing the client ends waiting claims without messages
                raise
            deliveries = codec.claimed(response, []).deliveries
            if deliveries or round_ms == wait_ms:
                return deliveries
            if until_s is not None:
                wait_ms = max(0, int((until_s - steady_s()) * 1_000))

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        """Send the verdicts with the claim. If a claim cannot carry them, send them before it."""
        check_exchange(verdicts, ask, wait_ms)
        if not verdicts:
            return Exchanged([], await self.claim(ref, ask, wait_ms))
        begun_s = steady_s()
        until_s = None if wait_ms is None else begun_s + wait_ms / 1_000
        round_ms = self._round_ms(wait_ms) if wait_ms != 0 and self._codec.waits_with_verdicts(ask) else 0
        exchanged = await self._exchange(ref, verdicts, ask, round_ms)
        if exchanged.deliveries or round_ms == wait_ms:
            return exchanged
        # A wait that ended long before its round was refused after the verdicts, for example by a queue's deletion.
        if round_ms and steady_s() - begun_s < _REFUSED_WITHIN * round_ms / 1_000:
            return exchanged
        remaining_ms = None if until_s is None else max(0, int((until_s - steady_s()) * 1_000))
        return await add_waited_claim(exchanged, remaining_ms, lambda: self.claim(ref, ask, remaining_ms))

    async def _exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        if not self._fit_on_claim(verdicts):
            return Exchanged(await self.settle(ref, verdicts), await self.claim(ref, ask, 0))
        reply = await self._calls.send_unchecked(
            self._codec.claim(ref, ask, wait_ms, verdicts, partial(self._give_back_late, ref, ask))
        )
        exchanged = self._codec.claimed(self._calls.check(reply), verdicts)
        return exchanged._replace(
            results=await self._resolve_results(ref, verdicts, exchanged.results, is_unsure=reply.is_unsure)
        )

    def _fit_on_claim(self, verdicts: list[Verdict]) -> bool:
        verdicts_on_claim = self._codec.verdicts_on_claim
        return all(verdict.settle in verdicts_on_claim for verdict in verdicts)

    def _round_ms(self, wait_ms: int | None) -> int | None:
        if wait_ms is None:
            return self._wait_round_ms
        return min(wait_ms, self._wait_round_ms or self._codec.max_wait_ms)

    async def _give_back_late(self, ref: QueueRef, ask: ClaimRequest, response: Res) -> None:
        # The messages of a numbered claim stay claimed: the consumer reads them again by the number.
        if ask.ledger is None:
            await self.give_back(ref, self._codec.deliveries(response))

    async def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """Undo the claim of messages that their caller never saw. No attempt is counted."""
        if deliveries:
            unseen = [Verdict(settle=Settle.UNSEND, receipt=delivery.receipt) for delivery in deliveries]
            await self._settle(ref, unseen, is_last=True)

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        return self._codec.part(await self._calls.send(self._codec.read_part(ref, receipt, offset, limit)))

    # --- Streams ---------------------------------------------------------------------------------------------------

    def stream(self, ref: QueueRef, ask: ClaimRequest, prefetch: int) -> AsyncIterator[Delivery]:
        """Yield the deliveries of one claim after another. Protocols with subscriptions override this."""
        check_claim_request(ask)
        return self._streams.read(
            PollStream(ref, ask, prefetch, self._calls.tasks), self._calls, self.claim, self.give_back
        )

    def end_streams(self) -> None:
        """Let waiting streams end, because the client is closed."""
        self._streams.wake_all()

    # --- Verdicts --------------------------------------------------------------------------------------------------

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        """Settle with as few requests as possible. A single verdict may share a request with those of other callers."""
        check_verdicts(verdicts)
        mixes = self._codec.mixes_verdicts
        if len(verdicts) == 1:
            return [await self._settle_one((ref, None if mixes else verdicts[0].settle), verdicts[0])]
        kinds = () if mixes else tuple(dict.fromkeys(verdict.settle for verdict in verdicts))
        if len(kinds) <= 1:
            return await self._settle(ref, verdicts)
        results: dict[int, Result] = {}
        for kind in kinds:
            mine = [at for at, verdict in enumerate(verdicts) if verdict.settle is kind]
            settled = await self._settle(ref, [verdicts[at] for at in mine])
            results.update(zip(mine, settled, strict=True))
        return [results[at] for at in range(len(verdicts))]

    async def _settle_one(self, key: tuple[QueueRef, Settle | None], verdict: Verdict) -> Result:
        coalescer = self._verdicts.get(key)
        if coalescer is None:
            if len(self._verdicts) >= _MAX_COALESCERS:
                self._verdicts.clear()
            coalescer = self._verdicts[key] = self._calls.tasks.coalescer(partial(self._settle, key[0]), _verdict_bytes)
        return await coalescer.add(verdict)

    async def _settle(self, ref: QueueRef, verdicts: list[Verdict], *, is_last: bool = False) -> list[Result]:
        due = self._streams.find_due(ref, verdicts) if not is_last and self._fit_on_claim(verdicts) else None
        if due is not None:
            return await self._settle_and_claim(verdicts, *due)
        reply = await self._calls.send_unchecked(self._codec.settle(ref, verdicts, is_last=is_last))
        results = self._codec.settled(reply.response, verdicts)
        return await self._resolve_results(ref, verdicts, results, is_unsure=reply.is_unsure)

    async def _settle_and_claim(self, verdicts: list[Verdict], stream: PollStream, its_own: int) -> list[Result]:
        """Send verdicts with the next claim of a stream, which is due."""
        with stream.claiming():
            results, deliveries = await self._exchange(stream.ref, verdicts, stream.make_claim(its_own))
            is_taken = stream.take(deliveries)
        if not is_taken:  # the stream's reader has left in the meantime
            await self.give_back(stream.ref, deliveries)
        return results

    async def _resolve_results(
        self, ref: QueueRef, verdicts: list[Verdict], results: list[Result], *, is_unsure: bool
    ) -> list[Result]:
        if is_unsure:
            results = [
                await resolve_outcome(self._operations, ref, *pair) for pair in zip(verdicts, results, strict=True)
            ]
        self._streams.record(ref, verdicts, results)
        return results


def _draft_bytes(draft: Draft) -> int:
    return len(draft.payload) + _ITEM_BYTES


def _verdict_bytes(verdict: Verdict) -> int:
    return len(verdict.error or "") + _ITEM_BYTES
