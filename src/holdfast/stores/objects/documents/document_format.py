"""Documents as bytes.

Every document that is compared and swapped is a *sheet*:

    "HF" | format 1 | crc32 4 of the rest | MessagePack array:
        nonce     of this write; never the same twice, so that equal content never means an equal ETag
        past      the nonces of the writes before it, the latest first
        step      id of the step that wrote it, while that may not hold yet (steps.py); else nil
        prior     what the sheet said before that step; nil: there was none
        body      MessagePack of what it is about

New fields come at the end of an array, with a default.
"""

import os
import struct
from zlib import crc32

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import JournalEvent
from holdfast.model.message import Envelope, Pieces, State
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Life

FORMAT = 1
NONCE_BYTES = 12
# Writes that a sheet remembers: a write whose answer was lost is looked for among them.
_PAST = 6

_HEAD = struct.Struct(">2sBI")
_MAGIC = b"HF"


class CasDocument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    nonce: bytes
    past: list[bytes]
    step: str | None
    prior: bytes | None
    body: bytes


class Note(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event in the outbox. `number` counts the message's events; `order` sorts those of one process."""

    number: int
    order: int
    event: JournalEvent


class MessageBody(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All of a message but its payload and its state document."""

    id: int
    tenant: str
    queue: str
    enqueued_at: int
    size: int
    checksum: int
    life: Life
    content_type: str
    is_json: bool = False
    headers: dict[str, str] = {}
    ttl_ms: int | None = None
    group: str | None = None
    given_correlation_id: str | None = None
    max_retries: int | None = None
    # The process that granted the lease: its end is by that one's clock.
    granter: str | None = None
    # Events so far, and those that are not in the journal yet.
    noted: int = 0
    outbox: list[Note] = []
    has_state: bool = False
    # Nothing is left of it but its events; after them it is deleted.
    is_gone: bool = False
    # The message is elsewhere, under this key.
    moved_to: str | None = None
    # Where it left such a sheet behind: deleted with the message.
    stubs: list[str] = []
    # Where payload and state lie, if not beside this.
    payload_at: str | None = None
    state_at: str | None = None
    # Its state document was written, and must be there from then on. Older versions did not record this.
    is_state_written: bool = False

    def envelope(self, payload: bytes | None = None) -> Envelope:
        """Without a payload it is left where it is."""
        return Envelope(
            id=self.id,
            enqueued_at=self.enqueued_at,
            payload=payload or b"",
            pieces=Pieces(self.id, self.size, self.checksum) if payload is None else None,
            content_type=self.content_type,
            headers=self.headers,
            ttl_ms=self.ttl_ms,
            group=self.group,
            given_correlation_id=self.given_correlation_id,
            max_retries=self.max_retries,
            is_json=self.is_json,
        )

    @property
    def ref(self) -> QueueRef:
        return QueueRef(self.tenant, self.queue)

    @property
    def is_message(self) -> bool:
        return self.moved_to is None and not self.is_gone

    @property
    def is_dead_letter(self) -> bool:
        return self.is_message and self.life.state is State.FAILED

    # Last: the name hides the type's from here on.
    @property
    def bytes(self) -> int:
        return self.envelope().bytes


class KeyBody(msgspec.Struct, frozen=True, array_like=True):
    id: int
    given_correlation_id: str | None
    ends_at: int


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A group's messages that may be in flight."""

    ids: list[int]


class LedgerBody(msgspec.Struct, frozen=True, array_like=True):
    consumer: str
    closed_upto: int = -1
    # By number: when, and the receipts.
    open: dict[int, tuple[int, list[tuple[int, bytes, int]]]] = {}


class NodeBody(msgspec.Struct, frozen=True, array_like=True):
    holder: str | None
    ends_at: int
    highest_id: int


class RoomBody(msgspec.Struct, frozen=True, array_like=True):
    """What a tenant keeps, with what was last checked against its quotas."""

    messages: int
    bytes: int


class StepBody(msgspec.Struct, frozen=True, array_like=True):
    """Whether a step holds, and what it wrote."""

    holds: bool
    keys: list[str]


class SegmentBody(msgspec.Struct, frozen=True, array_like=True):
    events: list[JournalEvent]
    # From whose outboxes they came, up to which number.
    emptied: list[tuple[str, int]]


encode = msgspec.msgpack.Encoder().encode
_sheet_of = msgspec.msgpack.Decoder(CasDocument).decode
message_of = msgspec.msgpack.Decoder(MessageBody).decode


def new_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def encode_sheet(
    body: bytes, before: CasDocument | None = None, *, step: str | None = None, prior: bytes | None = None
) -> tuple[bytes, CasDocument]:
    """What to write, and the sheet that it is. `before` is what stands there now."""
    past = [] if before is None else [before.nonce, *before.past][:_PAST]
    sheet = CasDocument(new_nonce(), past, step, prior, body)
    packed = encode(sheet)
    return _HEAD.pack(_MAGIC, FORMAT, crc32(packed)) + packed, sheet


def decode_sheet(key: str, raw: bytes) -> CasDocument:
    try:
        magic, format, checksum = _HEAD.unpack_from(raw)
        packed = raw[_HEAD.size :]
        if magic != _MAGIC:
            raise StoreUnavailable(f"{key} is not of Holdfast: look what else writes into this place")
        if format != FORMAT:
            raise StoreUnavailable(f"{key} has format {format}, this version reads {FORMAT}: upgrade Holdfast")
        if crc32(packed) != checksum:
            raise StoreUnavailable(f"{key} is damaged: its checksum does not match; restore a backup")
        return _sheet_of(packed)
    except (struct.error, msgspec.MsgspecError) as error:
        raise StoreUnavailable(f"{key} is damaged ({error}): restore a backup") from None
