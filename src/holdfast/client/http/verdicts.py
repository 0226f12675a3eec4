"""Verdicts over HTTP: settled in as few requests as can be, and what a verdict without an answer did."""

from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast.client.clarify import clarify
from holdfast.client.http.calls import Calls, Request
from holdfast.client.http.coalesce import Coalescer
from holdfast.client.http.failures import answer_error
from holdfast.client.http.shapes import receipt_in
from holdfast.client.transport import Operations
from holdfast.model.answers import Delivery, Result
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict, check_verdicts
from holdfast.wire.http import ExtendRequest, NackRequest, ReleaseRequest, SettleAnswer, SettleRequest, encode
from holdfast.wire.http import Request as Document
from holdfast.wire.http_shapes import result_of

_settled = msgspec.json.Decoder(SettleAnswer)
_VERDICT_BYTES = 256


class Verdicts:
    def __init__(self, calls: Calls, operations: Operations) -> None:
        self._calls = calls
        self._operations = operations
        self._coalescers: dict[tuple[QueueRef, Settle], Coalescer[Verdict, Result]] = {}

    def forked(self) -> None:
        self._coalescers.clear()

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        """One request for each kind of verdict there is. A single one may ride with those of others."""
        check_verdicts(verdicts)
        if len(verdicts) == 1:
            return [await self._settle_one(ref, verdicts[0])]
        kinds = list(dict.fromkeys(verdict.settle for verdict in verdicts))
        if len(kinds) <= 1:
            return await self._send(ref, kinds[0] if kinds else Settle.ACK, verdicts)
        results: dict[int, Result] = {}
        for kind in kinds:
            mine = [at for at, verdict in enumerate(verdicts) if verdict.settle is kind]
            answers = await self._send(ref, kind, [verdicts[at] for at in mine])
            results.update(zip(mine, answers, strict=True))
        return [results[at] for at in range(len(verdicts))]

    async def give_back(self, ref: QueueRef, deliveries: Sequence[Delivery]) -> None:
        """What its caller never saw: as if it had not been claimed."""
        if deliveries:
            unseen = [Verdict(settle=Settle.UNSEND, receipt=delivery.receipt) for delivery in deliveries]
            await self._send(ref, Settle.UNSEND, unseen)

    async def clarify(self, ref: QueueRef, verdict: Verdict, result: Result) -> Result:
        return await clarify(self._operations, ref, verdict, result)

    async def _settle_one(self, ref: QueueRef, verdict: Verdict) -> Result:
        key = ref, verdict.settle
        coalescer = self._coalescers.get(key)
        if coalescer is None:
            coalescer = self._coalescers[key] = Coalescer(
                partial(self._send, ref, verdict.settle),
                _size_of,
                self._calls.spawn,
                lambda: self._coalescers.pop(key, None),
            )
        return await coalescer.add(verdict)

    async def _send(self, ref: QueueRef, kind: Settle, verdicts: list[Verdict]) -> list[Result]:
        path, document = _request(ref, kind, verdicts)
        is_last = kind is Settle.UNSEND
        told = await self._calls.tell(Request("POST", path, [encode(document)], is_last=is_last, has_results=True))
        if told.answer.status not in (200, 409, 503):
            raise answer_error(self._calls.url, told.answer)
        try:
            results = [result_of(kind, each) for each in _settled.decode(told.answer.body).results]
        except msgspec.DecodeError:  # a refusal of the whole call has no results
            raise answer_error(self._calls.url, told.answer) from None
        if told.is_unsure:
            results = [
                await clarify(self._operations, ref, verdict, result)
                for verdict, result in zip(verdicts, results, strict=True)
            ]
        return results


def _request(ref: QueueRef, kind: Settle, verdicts: list[Verdict]) -> tuple[str, Document]:
    receipts = [receipt_in(each) for each in verdicts]
    tenant, queue = ref
    match kind:
        case Settle.ACK | Settle.REMOVE:
            return f"/v1/queue/{kind}", SettleRequest(tenant=tenant, queue=queue, receipts=receipts)
        case Settle.NACK:
            return "/v1/queue/nack", NackRequest(tenant=tenant, queue=queue, receipts=receipts)
        case Settle.EXTEND:
            return "/v1/queue/extend", ExtendRequest(tenant=tenant, queue=queue, receipts=receipts)
        case Settle.RELEASE | Settle.UNSEND:
            is_unseen = kind is Settle.UNSEND
            return "/v1/queue/release", ReleaseRequest(tenant=tenant, queue=queue, receipts=receipts, unseen=is_unseen)


def _size_of(verdict: Verdict) -> int:
    return _VERDICT_BYTES + len(verdict.error or "")
