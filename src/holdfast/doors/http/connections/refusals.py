"""Make the response to a request that could not be parsed."""

import secrets
from collections.abc import Mapping

from holdfast.doors.http.connections.request_heads import RefusedRequest
from holdfast.doors.http.connections.response_heads import ResponseHeads
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import normalise_correlation_id
from holdfast.wire.errors import error_document
from holdfast.wire.http.bodies import encode


def refusal_response(
    refusal: RefusedRequest, headers_so_far: Mapping[bytes, bytes], heads: ResponseHeads, now_s: float
) -> bytes:
    """Return the whole response, which is the last of its connection.

    `headers_so_far` are the request's headers that were parsed before it was refused.
    """
    body = encode({"error": error_document(InvalidArgument(refusal.message))})
    given = headers_so_far.get(b"x-correlation-id", b"")
    correlation_id = normalise_correlation_id(given.decode("latin-1")) or secrets.token_hex(12)
    headers = [(b"content-type", b"application/json"), (b"x-correlation-id", correlation_id.encode())]
    head = heads.make(refusal.status, headers, keep_alive=False, now_s=now_s)
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
