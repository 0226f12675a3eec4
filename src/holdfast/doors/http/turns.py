"""Requests that were read and not parsed yet: where the first of them ends, and whose it is.

Both are guesses that decide only how soon the bytes are parsed. What they mean is up to the parser.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from holdfast.doors.identity import AUTHORIZATION

if TYPE_CHECKING:
    from holdfast.doors.http.connections import KnownHead
    from holdfast.doors.http.request_reader import RequestReader

# Of the rest of a head or of a body.
_PART_BYTES = 16 * 1_024

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_CREDENTIAL = re.compile(rb"\r\nauthorization:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)


class HeldRequest(NamedTuple):
    """The start of held bytes. `size` may be more than there are."""

    size: int
    # The Authorization header, if there is one.
    credential: bytes | None


def held_request(held: bytes, reader: "RequestReader", known_heads: Mapping[bytes, "KnownHead"]) -> HeldRequest:
    """Look at the bytes that `reader` is to be given next."""
    if not reader.is_idle:
        return HeldRequest(_PART_BYTES, None)
    end = held.find(b"\r\n\r\n") + 4
    if end < 4:
        return HeldRequest(max(len(held), 1), None)
    known = known_heads.get(held[:end])
    if known is not None:
        return HeldRequest(end + known.body_bytes, known.head.headers.get(AUTHORIZATION))
    # The line break of the first of the two that end the head ends its last header, too.
    length, credential = _LENGTH.search(held, 0, end), _CREDENTIAL.search(held, 0, end)
    return HeldRequest(end + (int(length[1]) if length else 0), credential[1] if credential else None)
