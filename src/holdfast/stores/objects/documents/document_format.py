"""The encoding of documents that are compared and swapped (CAS documents): files whose names end in .pb.

    08 02 | 15, crc32 of the revision: 4 bytes | 1a, its length | the revision:
        nonce     random, new with every write, so that equal content never has an equal ETag
        past      the nonces of the previous writes, latest first
        step      id of the multi-document step that wrote this, while it is not finished (cas_documents.py)
        prior     the body before that step; not set: the document did not exist
        body      one of the structs in `bodies.py`, or empty: the document counts as missing

This is the Protocol Buffers message `Document` of `objects.proto`, with its fields always in this order, so that other
programs can read a bucket. Here the bodies stay encoded: only their readers decode them.

Format 1, of earlier versions, is `"HF" | 1 | crc32 of the rest, 4 bytes | MessagePack array of the same fields`, with
bodies in MessagePack. It is still read. Its documents get format 2 when they are next written.

How to change this format: to add a field, see `bodies.py`. For any other change increase `FORMAT`, let
`decode_document` read both formats, and write the new one only in the release after that. Keep a fixture of each format
in the tests.
"""

import os
import struct
from collections.abc import Callable
from zlib import crc32

import msgspec
from google.protobuf.message import DecodeError

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.documents import layout, objects_pb2
from holdfast.stores.objects.documents.protobuf_mapping import KINDS, encode

FORMAT = 2
NONCE_BYTES = 12
# Number of previous nonces that a document keeps: a write whose response was lost is looked up among them.
_PAST = 6

# Tag and value of `format`, tag and value of `checksum`, tag of `revision`.
_HEAD = struct.Struct("<2ssI1s")
_FORMAT_FIELD, _CHECKSUM_TAG, _REVISION_TAG = bytes([0x08, FORMAT]), b"\x15", b"\x1a"
_HEAD_1 = struct.Struct(">2sBI")
_MAGIC_1 = b"HF"


class CasDocument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A document as it is stored. The fields are explained at the top of this file."""

    nonce: bytes
    past: list[bytes]
    step: str | None
    prior: bytes | None
    body: bytes


_decode_document_1 = msgspec.msgpack.Decoder(CasDocument).decode
_decode_body_1: dict[str, Callable[[bytes], msgspec.Struct]] = {
    name: msgspec.msgpack.Decoder(kind).decode for name, kind in KINDS.items()
}


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
    revision = objects_pb2.EncodedRevision(
        nonce=document.nonce, past=past, step=step, prior=prior, body=body
    ).SerializeToString()
    head = _HEAD.pack(_FORMAT_FIELD, _CHECKSUM_TAG, crc32(revision), _REVISION_TAG)
    return head + _encode_length(len(revision)) + revision, document


def decode_document(key: str, raw: bytes) -> CasDocument:
    """Return a stored document. Raise `StoreUnavailable`, naming the key, if it is damaged or not Holdfast's."""
    try:
        if raw.startswith(_MAGIC_1):
            return _decode_format_1(key, raw)
        format_field, checksum_tag, checksum, revision_tag = _HEAD.unpack_from(raw)
        if (checksum_tag, revision_tag) != (_CHECKSUM_TAG, _REVISION_TAG) or format_field[0] != _FORMAT_FIELD[0]:
            raise StoreUnavailable(f"{key} was not written by Holdfast; check what else writes to this store")
        if format_field[1] != FORMAT:
            raise _unknown_format(key, format_field[1])
        length, start = _decode_length(raw, _HEAD.size)
        revision = raw[start:]
        if len(revision) != length or crc32(revision) != checksum:
            raise _wrong_checksum(key)
        read = objects_pb2.EncodedRevision.FromString(revision)
        return CasDocument(
            read.nonce,
            list(read.past),
            read.step if read.HasField("step") else None,
            read.prior if read.HasField("prior") else None,
            read.body,
        )
    except (struct.error, IndexError, DecodeError, msgspec.MsgspecError) as error:
        raise StoreUnavailable(f"{key} is damaged ({error}): restore a backup") from None


def _decode_format_1(key: str, raw: bytes) -> CasDocument:
    """Return a document of format 1, with its bodies in the encoding of the current format."""
    _, format, checksum = _HEAD_1.unpack_from(raw)
    packed = raw[_HEAD_1.size :]
    if format != 1:
        raise _unknown_format(key, format)
    if crc32(packed) != checksum:
        raise _wrong_checksum(key)
    document = _decode_document_1(packed)
    decode = _decode_body_1[layout.kind(key)]
    prior, body = (encode(decode(each)) if each else each for each in (document.prior, document.body))
    return CasDocument(document.nonce, document.past, document.step, prior, body or b"")


def _unknown_format(key: str, format: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"{key} has format {format}, but this version reads formats up to {FORMAT}; upgrade Holdfast"
    )


def _wrong_checksum(key: str) -> StoreUnavailable:
    return StoreUnavailable(f"{key} is damaged: its checksum does not match; restore a backup")


def _encode_length(length: int) -> bytes:
    """Return a number as a varint."""
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def _decode_length(raw: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it. Raise `IndexError` if it does not end."""
    length = shift = 0
    while True:
        byte = raw[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return length, at
