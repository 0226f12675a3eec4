"""The calls of a history and their answers, one line each.

A call is written down before it is made and its answer after it came, so the order of the lines is an order that was:
a call that stands behind an answer began after it. A call without an answer was cut off by a kill: it happened or not.

Times are of one clock, the store's own or one that agrees with it: of a call before it was made, of an answer after it
came. Queues are named `tenant/queue`. `caller` is the tenant of the credential that a call was made with; None: none.
"""

from pathlib import Path

import msgspec

# More than any message is delivered in one run: such a message never fails of itself.
ENDLESS = 1_000_000


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", omit_defaults=True):
    pass


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message to send. `payload` is the digest of what was sent: only enqueues with one key share it, and they have
    the same options."""

    payload: str
    max_retries: int = ENDLESS
    key: str | None = None
    group: str | None = None
    ttl_ms: int | None = None
    # What outlives its TTL there is dropped, and does not go to the dead letters.
    is_dropped: bool = False


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


class PowerCut(_Line, frozen=True, kw_only=True):
    """The power went. Claims and extensions that were not yet on disk may be undone by it, and nothing else."""


class Stepped(_Line, frozen=True, kw_only=True):
    """The clock was set from one time to another, while calls may have been under way."""

    was: int
    at: int


class Enqueue(_Line, frozen=True, kw_only=True):
    n: int
    queue: str
    items: list[Item]
    at: int = 0
    caller: str | None = None


class Enqueued(_Line, frozen=True, kw_only=True):
    n: int
    ids: list[int]
    at: int = 0


class Claim(_Line, frozen=True, kw_only=True):
    n: int
    queue: str
    caller: str | None = None


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
    caller: str | None = None


class Settled(_Line, frozen=True, kw_only=True):
    n: int
    ok: list[bool]
    # Of an extension: when the lease ends now.
    expires_at: list[int | None] = []
    # Refused, but an earlier try of the same call may have been what settled it. Empty: none.
    unsure: list[bool] = []
    at: int = 0


class Redrive(_Line, frozen=True, kw_only=True):
    n: int
    queue: str
    caller: str | None = None


class Redriven(_Line, frozen=True, kw_only=True):
    n: int
    changed: int


class Remove(_Line, frozen=True, kw_only=True):
    """An operator ends messages. `verb`: purge, purge_failed, cancel, delete (the queue), or remove with its `id`."""

    n: int
    queue: str
    verb: str
    id: int | None = None
    caller: str | None = None


class Removed(_Line, frozen=True, kw_only=True):
    """`changed`: the number of messages it ended; None if the answer has no number, as for the deletion of a queue."""

    n: int
    changed: int | None = None


class Move(_Line, frozen=True, kw_only=True):
    """An operator moves messages to the queue `to`. `is_dropped`: what outlives its TTL there is dropped."""

    n: int
    queue: str
    to: str
    ids: list[int]
    is_dropped: bool = False
    caller: str | None = None


class Moved(_Line, frozen=True, kw_only=True):
    n: int
    changed: int


class Refused(_Line, frozen=True, kw_only=True):
    """A call that raised, and certainly changed nothing."""

    n: int
    error: str


class Unknown(_Line, frozen=True, kw_only=True):
    """A call that raised, and happened or not, or happens yet: as good as a call without an answer."""

    n: int
    error: str


class Counted(_Line, frozen=True, kw_only=True):
    """The counters of a queue and the result of a full scan, while nobody else used the queue."""

    queue: str
    counted: dict[str, int]
    scanned: dict[str, int]


class DeadLetter(_Line, frozen=True, kw_only=True):
    """Found among the failed at the very end, when everything else was claimed and acked."""

    id: int
    queue: str
    payload: str


class Stranded(_Line, frozen=True, kw_only=True):
    """Found at the very end, neither acked nor failed, though it should have been delivered long since."""

    id: int
    queue: str
    payload: str
    state: str = ""


class Journalled(_Line, frozen=True, kw_only=True):
    """An event of the journal, read at the end."""

    id: int
    event: str


class Drained(_Line, frozen=True, kw_only=True):
    """The end: nothing was ready, delayed or in flight any more, but for what is said to be stranded."""

    at: int = 0


Line = (
    Opened
    | PowerCut
    | Stepped
    | Enqueue
    | Enqueued
    | Claim
    | Claimed
    | Settle
    | Settled
    | Redrive
    | Redriven
    | Remove
    | Removed
    | Move
    | Moved
    | Refused
    | Unknown
    | Counted
    | DeadLetter
    | Stranded
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
