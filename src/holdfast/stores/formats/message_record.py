"""A stored message to bytes and back, with its format version and checksum.

    message   format 1 | flags 1 | priority 1 | enqueued_at 8 | visible_at 8 | expires_at 8 | extras 4 | crc32 4
              | extras (MessagePack, only if there are any)
              | payload, or its length 8, crc32 4 and place 8 if it lies in pieces
    life      MessagePack array: has_state, then the fields of `Life` in order

A message is written once. What changes of it is its life, and that stands elsewhere (docs/stores/rocksdb.md); a
message that was never claimed has the life it was born with, which its own header tells.
"""

import struct
from zlib import crc32

import msgspec

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import BYTES, JSON, Envelope, Pieces
from holdfast.model.rules.lifecycle import Life

FORMAT = 1

_HEAD = struct.Struct(">BBBQQQII")
# The last part of a head.
_CHECKSUM = struct.Struct(">I")
_PIECES = struct.Struct(">QIQ")
_HEAD_SIZE = _HEAD.size

_CONTENT_TYPES = (BYTES, JSON)
_OTHER_TYPE = 2
_TYPE_BITS = 0b11
_IN_PIECES = 0b100
# It is JSON though its content type is another, or the other way round.
_BELIES_TYPE = 0b1000


class _Extras(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
        flags |= _BELIES_TYPE
    if (pieces := envelope.pieces) is not None:
        flags |= _IN_PIECES
        body = _PIECES.pack(pieces.size, pieces.checksum, pieces.place)
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
    """Return what `encode_message` returns for messages that have only a payload each, bytes or JSON, and are alike in
    everything else."""
    flags = 0 if content_type == BYTES else 1
    head = _HEAD.pack(FORMAT, flags, first.priority, enqueued_at, first.visible_at, first.expires_at or 0, 0, 0)
    head = head[: -_CHECKSUM.size]
    pack = _CHECKSUM.pack
    return [b"%b%b%b" % (head, pack(crc32(payload)), payload) for payload in payloads]


class DecodedMessage(msgspec.Struct, frozen=True, gc=False):
    envelope: Envelope
    first: Life


def decode_message(id: int, raw: bytes) -> DecodedMessage:
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
            size, payload_checksum, place = _PIECES.unpack(body)
            body, pieces = b"", Pieces(place, size, payload_checksum)
    except (struct.error, msgspec.MsgspecError) as error:
        raise StoreUnavailable(f"message {id} is damaged ({error}): restore a backup") from None
    kind = flags & _TYPE_BITS
    is_json = (kind == 1) is not bool(flags & _BELIES_TYPE)
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
    return _encode((has_state, life))


def decode_life(raw: bytes) -> tuple[bool, Life]:
    try:
        return _decode_life(raw)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"a message's life is damaged ({error}): restore a backup") from None
