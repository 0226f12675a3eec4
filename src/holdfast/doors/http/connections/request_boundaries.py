"""Estimate, without parsing, the end of the first request in received bytes, and its tenant.

Both are estimates that affect only when the bytes are parsed. The parser alone decides what they mean.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from holdfast.doors.identity import AUTHORIZATION

if TYPE_CHECKING:
    from holdfast.doors.http.connections.connections import KnownHead
    from holdfast.doors.http.connections.request_reader import RequestReader

# The size of a part of a request whose beginning was already parsed.
_PART_BYTES = 16 * 1_024

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_CREDENTIAL = re.compile(rb"\r\nauthorization:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)


class UnreadRequest(NamedTuple):
    """The first request in bytes that are not parsed yet. `size` may exceed the number of received bytes."""

    size: int
    # The head as it was received. Empty if the head is incomplete or its beginning was already parsed.
    head: bytes = b""
    known: "KnownHead | None" = None

    @property
    def credential(self) -> bytes | None:
        """Return the value of the Authorization header, if there is one."""
        if self.known is not None:
            return self.known.head.headers.get(AUTHORIZATION)
        found = _CREDENTIAL.search(self.head)
        return None if found is None else found[1]


def first_request(data: bytes, reader: "RequestReader", known_heads: Mapping[bytes, "KnownHead"]) -> UnreadRequest:
    """Return the first request in `data`, the bytes that `reader` parses next."""
    if not reader.is_idle:
        return UnreadRequest(_PART_BYTES)
    end = data.find(b"\r\n\r\n") + 4
    if end < 4:
        return UnreadRequest(len(data))
    head = data[:end]
    known = known_heads.get(head)
    if known is not None:
        return UnreadRequest(known.whole_bytes, head, known)
    length = _LENGTH.search(head)
    return UnreadRequest(end + (int(length[1]) if length else 0), head)
