"""Handle claims under a number, which their consumer can read again."""

import msgspec

from holdfast.doors.http.calls import HttpCall
from holdfast.doors.http.operations.messages import claim_and_respond
from holdfast.doors.http.operations.shapes import claim_request_of
from holdfast.doors.http.request_bodies import decode
from holdfast.wire.http.bodies import LedgerClaimRequest

_claim = msgspec.json.Decoder(LedgerClaimRequest)


async def claim(call: HttpCall) -> None:
    """Handle `POST /v1/queue/ledger/claim`.

    An open number returns the same claim again. That never waits, and nothing is given back if the caller leaves.
    """
    request = decode(_claim, await call.body())
    ref = call.ref(request.tenant, request.queue)
    claim_request = claim_request_of(request, with_state=request.with_state, ledger=(request.consumer, request.number))
    await claim_and_respond(call, ref, claim_request, request)
