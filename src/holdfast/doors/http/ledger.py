"""Claim ledgers over HTTP: numbered claims that can be read again."""

import msgspec

from holdfast.doors.http.calls import Call, decode
from holdfast.doors.http.messages import claim_and_answer
from holdfast.doors.http.shapes import ask_of, ledger_entry_out, result_out
from holdfast.doors.http.ways import Way, integer_of
from holdfast.model.answers import Result
from holdfast.model.errors import InvalidArgument
from holdfast.model.requests import Settle
from holdfast.wire.http import (
    LedgerAckRequest,
    LedgerAnswer,
    LedgerClaimRequest,
    LedgerExtendRequest,
    SettleAnswer,
    encode,
)

_claim = msgspec.json.Decoder(LedgerClaimRequest)
_ack = msgspec.json.Decoder(LedgerAckRequest)
_extend = msgspec.json.Decoder(LedgerExtendRequest)


async def claim(call: Call) -> None:
    """A number that is open is answered again: nothing is waited for, and nothing given back."""
    request = decode(_claim, await call.body())
    ref = call.ref(request.tenant, request.queue)
    ledger = (request.consumer, request.number)
    await claim_and_answer(call, ref, ask_of(request, with_state=request.with_state, ledger=ledger), request)


async def extend(call: Call) -> None:
    request = decode(_extend, await call.body())
    ref = call.ref(request.tenant, request.queue)
    results = await call.session.ledger_extend(ref, request.consumer, request.lease_ms)
    await _answer_results(call, Settle.EXTEND, results)


async def ack(call: Call) -> None:
    request = decode(_ack, await call.body())
    ref = call.ref(request.tenant, request.queue)
    await _answer_results(call, Settle.ACK, await call.session.ledger_ack(ref, request.consumer, request.upto))


async def _answer_results(call: Call, settle: Settle, results: list[Result]) -> None:
    """200 even if some were lost: the call is for what the claims still hold, and the results say what they do not."""
    await call.answer(encode(SettleAnswer(results=[result_out(settle, each) for each in results])))


async def read(call: Call) -> None:
    fields = call.query("tenant", "queue", "consumer", "number")
    ref = call.ref(fields.get("tenant"), fields.get("queue"))
    if "consumer" not in fields:
        raise InvalidArgument("give the consumer whose claims are meant", field="consumer")
    claims = await call.session.ledger(ref, fields["consumer"], integer_of(fields, "number"))
    await call.answer(encode(LedgerAnswer(claims=[ledger_entry_out(each) for each in claims])))


WAYS = (
    Way("POST", "/v1/queue/ledger/claim", "claim", claim),
    Way("POST", "/v1/queue/ledger/extend", "ledger_extend", extend),
    Way("POST", "/v1/queue/ledger/ack", "ledger_ack", ack),
    Way("GET", "/v1/queue/ledger", "ledger", read),
)
