"""Claims under a number, which can be read again."""

import msgspec

from holdfast.doors.http.calls import HttpCall, decode
from holdfast.doors.http.operations.messages import claim_and_answer
from holdfast.doors.http.operations.shapes import ask_of
from holdfast.wire.http.bodies import LedgerClaimRequest

_claim = msgspec.json.Decoder(LedgerClaimRequest)


async def claim(call: HttpCall) -> None:
    """A number that is open is answered again: nothing is waited for, and nothing given back."""
    request = decode(_claim, await call.body())
    ref = call.ref(request.tenant, request.queue)
    ledger = (request.consumer, request.number)
    await claim_and_answer(call, ref, ask_of(request, with_state=request.with_state, ledger=ledger), request)
