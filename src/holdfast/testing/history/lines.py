"""What callers asked and were answered, one line each.

A call is written down before it is made and its answer after it came, so the order of the lines is an order that was:
a call that stands behind an answer began after it. A call without an answer was cut off by a kill: it happened or not.
"""

from pathlib import Path

import msgspec

# More than any message is delivered in one run: such a message never fails of itself.
ENDLESS = 1_000_000


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", omit_defaults=True):
    pass


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message to send. `payload` is the digest of what was sent: only enqueues with one key share it."""

    payload: str
    max_retries: int = ENDLESS
    key: str | None = None
    group: str | None = None


class Delivered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: int
    version: int
    attempt: int
    payload: str
    expires_at: int
    group: str | None = None
    receipt: str = ""


class Opened(_Line, frozen=True, kw_only=True):
    """A process has the store open now; whatever ran before it is dead."""

    session: int
    durability: str = ""


class Enqueue(_Line, frozen=True, kw_only=True):
    n: int
    queue: str
    items: list[Item]


class Enqueued(_Line, frozen=True, kw_only=True):
    n: int
    ids: list[int]


class Claim(_Line, frozen=True, kw_only=True):
    n: int
    queue: str


class Claimed(_Line, frozen=True, kw_only=True):
    n: int
    at: int
    deliveries: list[Delivered]


class Settle(_Line, frozen=True, kw_only=True):
    """`verb`: ack, nack, final, defer, release or extend; `leases`: (id, version) of each receipt."""

    n: int
    at: int
    queue: str
    verb: str
    leases: list[tuple[int, int]]


class Settled(_Line, frozen=True, kw_only=True):
    n: int
    ok: list[bool]
    # Of an extension: when the lease ends now.
    expires_at: list[int | None] = []


class Redrive(_Line, frozen=True, kw_only=True):
    n: int
    queue: str


class Redriven(_Line, frozen=True, kw_only=True):
    n: int
    changed: int


class Refused(_Line, frozen=True, kw_only=True):
    """A call that raised."""

    n: int
    error: str


class Counted(_Line, frozen=True, kw_only=True):
    """What the counters of a queue say, and what a listing found."""

    queue: str
    counted: int
    listed: int


class DeadLetter(_Line, frozen=True, kw_only=True):
    """Found among the failed at the very end, when everything else was claimed and acked."""

    id: int
    queue: str
    payload: str


class Journalled(_Line, frozen=True, kw_only=True):
    """An event of the journal, read at the end."""

    id: int
    event: str


class Drained(_Line, frozen=True, kw_only=True):
    """The end: nothing was ready, delayed or in flight any more."""


Line = (
    Opened
    | Enqueue
    | Enqueued
    | Claim
    | Claimed
    | Settle
    | Settled
    | Redrive
    | Redriven
    | Refused
    | Counted
    | DeadLetter
    | Journalled
    | Drained
)

encode_line = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(Line).decode


def read_history(path: Path) -> list[Line]:
    return parse_lines(path.read_bytes())


def parse_lines(raw: bytes) -> list[Line]:
    """Every whole line. The last one of a killed process may be torn: then it was never said."""
    lines: list[Line] = []
    for each in raw.split(b"\n"):
        try:
            lines.append(_decode_line(each))
        except msgspec.ValidationError:  # whole, but none of ours
            raise
        except msgspec.DecodeError:
            continue
    return lines
