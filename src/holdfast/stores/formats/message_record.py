"""The record of a stored message and of its life, as bytes, with a format version and a checksum.

    message   format 1 | flags 1 | priority 1 | enqueued_at 8 | visible_at 8 | expires_at 8 | size of extras 4 | crc32 4
              | extras (MessagePack array, only if there are any)
              | payload, or its size 8, crc32 4 and blob id 8 if it is kept in pieces
    life      MessagePack array: has_state, then an array of the fields of `Life` in order

Numbers are big-endian, and followed here by their size in bytes. The record of a message changes only if an operator
edits the payload. Its life changes often, and has a record of its own under another key (docs/stores/rocksdb.md). A
message that was never claimed has no such record: its first life is in the header of the message.

How to change this format: the life and the extras may get a new field at the end, with a default, which older records
decode to. For any other change of a message, raise `FORMAT` and keep decoding the previous formats: opening a store
does not rewrite its messages, so it may hold all of them. For any other change of a life, give its array another first
element. Either change also raises the format of the embedded store (`rocks/recovery/marker.py`), so that an older
version refuses the store instead of misreading it.
"""

import struct
from zlib import crc32

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import BYTES, JSON, Envelope, Pieces
from holdfast.model.rules.lifecycle import Life

FORMAT = 1

_HEAD = struct.Struct(">BBBQQQII")
# The last field of the header.
_CHECKSUM = struct.Struct(">I")
_PIECES = struct.Struct(">QIQ")
_HEAD_SIZE = _HEAD.size

_CONTENT_TYPES = (BYTES, JSON)
_OTHER_TYPE = 2
_TYPE_BITS = 0b11
_IN_PIECES = 0b100
# Set if the payload is JSON under another content type, or is not JSON under the content type of JSON.
_TYPE_MISMATCH = 0b1000


class _Extras(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields that most messages do not have."""

    content_type: str | None
    headers: dict[str, str]
    ttl_ms: int | None
    group: str | None
    given_correlation_id: str | None
    max_retries: int | None


_encode = msgspec.msgpack.Encoder().encode
_decode_extras = msgspec.msgpack.Decoder(_Extras).decode
_decode_life = msgspec.msgpack.Decoder(tuple[bool, Life]).decode


def encode_message(envelope: Envelope, first: Life) -> bytes:
    """Return the record of a new message. `first` is the life with which it is enqueued."""
    content_type = envelope.content_type
    flags = 0 if content_type == BYTES else 1 if content_type == JSON else _OTHER_TYPE
    extras = b""
    if (
        flags == _OTHER_TYPE
        or envelope.headers
        or envelope.ttl_ms is not None
        or envelope.group is not None
        or envelope.given_correlation_id is not None
        or envelope.max_retries is not None
    ):
        extras = _encode(
            _Extras(
                content_type if flags == _OTHER_TYPE else None,
                envelope.headers,
                envelope.ttl_ms,
                envelope.group,
                envelope.given_correlation_id,
                envelope.max_retries,
            )
        )
    body = envelope.payload
    if envelope.is_json is not (content_type == JSON):
        flags |= _TYPE_MISMATCH
    if (pieces := envelope.pieces) is not None:
        flags |= _IN_PIECES
        body = _PIECES.pack(pieces.size, pieces.checksum, pieces.blob_id)
    checksum = crc32(body, crc32(extras)) if extras else crc32(body)
    head = _HEAD.pack(
        FORMAT,
        flags,
        first.priority,
        envelope.enqueued_at,
        first.visible_at,
        first.expires_at or 0,
        len(extras),
        checksum,
    )
    return head + extras + body


def encode_bare_messages(payloads: list[bytes], content_type: str, enqueued_at: int, first: Life) -> list[bytes]:
    """Return the same records as `encode_message`, faster, for messages that differ only in their payloads.

    `content_type` is that of bytes or of JSON, and the messages have no headers, TTL, group, correlation id or maximum
    of retries of their own.
    """
    flags = 0 if content_type == BYTES else 1
    head = _HEAD.pack(FORMAT, flags, first.priority, enqueued_at, first.visible_at, first.expires_at or 0, 0, 0)
    head = head[: -_CHECKSUM.size]
    pack = _CHECKSUM.pack
    return [b"%b%b%b" % (head, pack(crc32(payload)), payload) for payload in payloads]


class DecodedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as its record has it: the envelope, and the life with which it was enqueued."""

    envelope: Envelope
    first: Life


def decode_message(id: int, raw: bytes) -> DecodedMessage:
    """Return the message with this record. Raise `StoreUnavailable` if it is damaged or of a newer format."""
    try:
        format, flags, priority, enqueued_at, visible_at, expires_at, extras_size, checksum = _HEAD.unpack_from(raw)
        if format != FORMAT:
            raise StoreUnavailable(f"message {id} has format {format}, this version reads {FORMAT}: upgrade Holdfast")
        if crc32(raw[_HEAD_SIZE:]) != checksum:
            raise StoreUnavailable(f"message {id} is damaged: its checksum does not match; restore a backup")
        body = raw[_HEAD_SIZE + extras_size :]
        extras = _decode_extras(raw[_HEAD_SIZE : _HEAD_SIZE + extras_size]) if extras_size else None
        pieces = None
        if flags & _IN_PIECES:
            size, payload_checksum, blob_id = _PIECES.unpack(body)
            body, pieces = b"", Pieces(blob_id, size, payload_checksum)
    except (struct.error, msgspec.MsgspecError) as error:
        raise StoreUnavailable(f"message {id} is damaged ({error}): restore a backup") from None
    kind = flags & _TYPE_BITS
    is_json = (kind == 1) is not bool(flags & _TYPE_MISMATCH)
    first = Life(priority=priority, visible_at=visible_at, expires_at=expires_at or None)
    if extras is None:
        envelope = Envelope(
            id=id,
            enqueued_at=enqueued_at,
            payload=body,
            pieces=pieces,
            content_type=_CONTENT_TYPES[kind],
            is_json=is_json,
        )
    else:
        envelope = Envelope(
            id=id,
            enqueued_at=enqueued_at,
            payload=body,
            pieces=pieces,
            content_type=extras.content_type or _CONTENT_TYPES[kind],
            headers=extras.headers,
            ttl_ms=extras.ttl_ms,
            group=extras.group,
            given_correlation_id=extras.given_correlation_id,
            max_retries=extras.max_retries,
            is_json=is_json,
        )
    return DecodedMessage(envelope, first)


def encode_life(life: Life, *, has_state: bool) -> bytes:
    """Return the record of a life. `has_state` says that the message has a state document."""
    return _encode((has_state, life))


def decode_life(raw: bytes) -> tuple[bool, Life]:
    """Return whether the message has a state document, and its life. Raise `StoreUnavailable` if they are damaged."""
    try:
        return _decode_life(raw)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"a message's life is damaged ({error}): restore a backup") from None
