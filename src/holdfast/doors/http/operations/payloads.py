"""Read payloads that a claim omitted, part by part, by the receipt of their message."""

import msgspec

from holdfast.doors.http.calls import HttpCall
from holdfast.doors.http.request_bodies import decode
from holdfast.model.message import Receipt
from holdfast.wire.http.bodies import PAYLOAD_BYTES, PayloadRequest

_payload = msgspec.json.Decoder(PayloadRequest)


async def read_part(call: HttpCall) -> None:
    """Handle `POST /v1/queue/payload`.

    A part is short, so a caller that reads slowly or stops reading occupies little here. Each part is checked against
    the lease separately.
    """
    request = decode(_payload, await call.body())
    ref = call.ref(request.tenant, request.queue)
    part = await call.session.read_part(ref, Receipt.parse(request.receipt), request.offset, request.limit)
    call.correlation_id = part.correlation_id
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"cache-control", b"no-store"),
        (PAYLOAD_BYTES.lower().encode(), str(part.total).encode()),
    ]
    await call.answer(part.data, headers=headers)
