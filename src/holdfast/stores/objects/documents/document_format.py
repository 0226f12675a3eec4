"""The encoding of documents that are compared and swapped (CAS documents).

    "HF" | format 1 | crc32 of the rest, 4 bytes | MessagePack array:
        nonce     random, new with every write, so that equal content never has an equal ETag
        past      the nonces of the previous writes, latest first
        step      id of the multi-document step that wrote this, while it is not finished (cas_documents.py); else nil
        prior     the body before that step; nil: the document did not exist
        body      MessagePack of one of the structs below, or empty: the document counts as missing

How to change this format: append new fields at the end of a struct, with a default, and processes of both versions can
read each other's documents; a version that does not know a field drops it when it rewrites the document. For any other
change increase `FORMAT`, let `decode_document` read both formats, and write the new one only in the release after that.
Keep a fixture of each format in the tests.
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
# Number of previous nonces that a document keeps: a write whose response was lost is looked up among them.
_PAST = 6

_HEAD = struct.Struct(">2sBI")
_MAGIC = b"HF"


class CasDocument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A document as it is stored. The fields are explained at the top of this file."""

    nonce: bytes
    past: list[bytes]
    step: str | None
    prior: bytes | None
    body: bytes


class OutboxEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that is not in the journal yet. `number` counts the events of its message; `order` sorts the events of
    one process."""

    number: int
    order: int
    event: JournalEvent


class MessageBody(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A message without its payload and its state document."""

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
    # The process that granted the lease. Its clock determines when the lease ends.
    granter: str | None = None
    # Number of events so far, and the events that are not in the journal yet.
    event_count: int = 0
    outbox: list[OutboxEvent] = []
    has_state: bool = False
    # The message has ended; it is deleted once its events are in the journal.
    is_gone: bool = False
    # Set in a stub: the key that the message was moved to.
    moved_to: str | None = None
    # Keys of the stubs that the message left behind; they are deleted with it.
    stubs: list[str] = []
    # Keys of payload and state, if not derived from the key of the metadata.
    payload_key: str | None = None
    state_key: str | None = None
    # The state document has been written, so a missing one is lost. Older versions did not record this.
    is_state_written: bool = False

    def envelope(self, payload: bytes | None = None) -> Envelope:
        """Return the message's envelope. Without a payload, it refers to the stored one."""
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
        """The queue of the message."""
        return QueueRef(self.tenant, self.queue)

    @property
    def is_message(self) -> bool:
        """True unless this is a stub or the message has ended."""
        return self.moved_to is None and not self.is_gone

    @property
    def is_dead_letter(self) -> bool:
        """True if the message has failed."""
        return self.is_message and self.life.state is State.FAILED

    # Last, because the name hides the type `bytes` from here on.
    @property
    def bytes(self) -> int:
        """The size of payload and headers, as quotas count it."""
        return self.envelope().bytes


class KeyBody(msgspec.Struct, frozen=True, array_like=True):
    """An idempotency key: its first message, and the end of its deduplication window."""

    id: int
    given_correlation_id: str | None
    ends_at: int


class GroupBody(msgspec.Struct, frozen=True, array_like=True):
    """The ids of a group's messages that may be in flight."""

    ids: list[int]


class LedgerBody(msgspec.Struct, frozen=True, array_like=True):
    """A consumer's claim ledger."""

    consumer: str
    closed_upto: int = -1
    # Open claims by number: the time of the claim, and the receipts.
    open: dict[int, tuple[int, list[tuple[int, bytes, int]]]] = {}


class NodeBody(msgspec.Struct, frozen=True, array_like=True):
    """The lease of a node number. `holder` is None once it was released; `highest_id` is the highest id made with
    it."""

    holder: str | None
    ends_at: int
    highest_id: int


class QuotaGuardBody(msgspec.Struct, frozen=True, array_like=True):
    """Messages and bytes of a tenant when its quotas were last checked."""

    messages: int
    bytes: int


class StepBody(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a multi-document step, and the keys that it wrote."""

    is_committed: bool
    keys: list[str]


class SegmentBody(msgspec.Struct, frozen=True, array_like=True):
    """A segment of the journal."""

    events: list[JournalEvent]
    # The metadata keys whose outboxes these events came from, each with the number of its last event here.
    emptied: list[tuple[str, int]]


encode = msgspec.msgpack.Encoder().encode
_decode_document = msgspec.msgpack.Decoder(CasDocument).decode
decode_message = msgspec.msgpack.Decoder(MessageBody).decode


def new_nonce() -> bytes:
    """Return a nonce for a write."""
    return os.urandom(NONCE_BYTES)


def encode_document(
    body: bytes, before: CasDocument | None = None, *, step: str | None = None, prior: bytes | None = None
) -> tuple[bytes, CasDocument]:
    """Return a new document and its encoding. `before` is the document that it replaces, or None.

    With `step` it becomes visible only once that step is committed; until then readers see `prior`.
    """
    past = [] if before is None else [before.nonce, *before.past][:_PAST]
    document = CasDocument(new_nonce(), past, step, prior, body)
    packed = encode(document)
    return _HEAD.pack(_MAGIC, FORMAT, crc32(packed)) + packed, document


def decode_document(key: str, raw: bytes) -> CasDocument:
    """Return a stored document. Raise `StoreUnavailable`, naming the key, if it is damaged or not Holdfast's."""
    try:
        magic, format, checksum = _HEAD.unpack_from(raw)
        packed = raw[_HEAD.size :]
        if magic != _MAGIC:
            raise StoreUnavailable(f"{key} was not written by Holdfast; check what else writes to this store")
        if format != FORMAT:
            raise StoreUnavailable(
                f"{key} has format {format}, but this version reads format {FORMAT}; upgrade Holdfast"
            )
        if crc32(packed) != checksum:
            raise StoreUnavailable(f"{key} is damaged: its checksum does not match; restore a backup")
        return _decode_document(packed)
    except (struct.error, msgspec.MsgspecError) as error:
        raise StoreUnavailable(f"{key} is damaged ({error}): restore a backup") from None
