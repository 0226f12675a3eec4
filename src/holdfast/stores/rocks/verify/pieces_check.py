"""Checks of payloads in pieces: each is complete and belongs to one message, or is an upload that a crash
interrupted."""

from collections import Counter
from collections.abc import Iterator
from zlib import crc32

from holdfast.model.errors import StoreUnavailable
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.message import Pieces
from holdfast.stores.findings import Findings
from holdfast.stores.formats.message_record import decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.reads import MergedReads

_PIECE_BYTES = 256 << 10
_BLOB_ID_SIZE = 8


def check_payload(database: MergedReads, pieces: Pieces, queue: object, id16: bytes, findings: Findings) -> None:
    """Check that the pieces of a message's payload are numbered without gaps, and have the right sizes and checksum."""
    space = keys.PIECES + keys.pack_blob_id(pieces.blob_id)
    count = -(-pieces.size // _PIECE_BYTES)
    found = right = checksum = 0
    for key, piece in database.items(keys.INDEXES, space, keys.after(space)):
        size = min(_PIECE_BYTES, pieces.size - found * _PIECE_BYTES)
        right += key[len(space) :] == found.to_bytes(4, "big") and len(piece) == size
        found += 1
        checksum = crc32(piece, checksum)
    findings.totals["blobs"] += found > 0
    if not found == right == count:
        findings.add(
            DamageKind.PAYLOAD_LOST,
            f"its payload has {found} of {count} pieces (ix c), or pieces of the wrong size",
            queue,
            id16,
        )
    elif checksum != pieces.checksum:
        findings.add(DamageKind.PAYLOAD_DAMAGED, "its payload is damaged: its checksum does not match", queue, id16)


def check_blobs(database: MergedReads, found: int, findings: Findings) -> None:
    """Check that every blob belongs to one message or to an unfinished upload.

    Call after the check of a shard's messages, which have found the pieces of `found` blobs.
    """
    staged = 0
    for key in database.scan(keys.INDEXES, keys.STAGES, keys.after(keys.STAGES)):
        space = keys.PIECES + key[len(keys.STAGES) :]
        sizes = [len(piece) for _, piece in database.items(keys.INDEXES, space, keys.after(space))]
        findings.totals["unfinished"] += 1
        findings.totals["unfinished_bytes"] += sum(sizes)
        staged += bool(sizes)
    # The blob of every message was looked up. So if there are no more blobs than were found, all of them are accounted
    # for, and the owners need not be collected in memory.
    if sum(1 for _ in _blob_ids(database)) != found + staged:
        _find_strays(database, findings)


def _blob_ids(database: MergedReads) -> Iterator[bytes]:
    """Yield the id of every blob that has pieces, with one seek for each."""
    lower, upper = keys.PIECES, keys.after(keys.PIECES)
    while (key := next(database.scan(keys.INDEXES, lower, upper), None)) is not None:
        blob_id = key[len(keys.PIECES) : len(keys.PIECES) + _BLOB_ID_SIZE]
        yield blob_id
        lower = keys.after(keys.PIECES + blob_id)


def _find_strays(database: MergedReads, findings: Findings) -> None:
    """Add a violation for each blob without an owner or with several. Needs memory for every large message, so it is
    called only for a damaged store."""
    owners: Counter[bytes] = Counter()
    for key, raw in database.items(keys.MESSAGES, b"", b"\xff" * (keys.P_SIZE + keys.ID_SIZE + 1)):
        try:
            pieces = decode_message(keys.parse_id(key[keys.P_SIZE :]), raw).envelope.pieces
        except StoreUnavailable:
            continue  # the check of the messages has reported it
        if pieces is not None:
            owners[keys.pack_blob_id(pieces.blob_id)] += 1
    for key in database.scan(keys.INDEXES, keys.STAGES, keys.after(keys.STAGES)):
        blob_id = key[len(keys.STAGES) :]
        if owners[blob_id]:
            findings.add(
                DamageKind.PAYLOAD_GIVEN_UP,
                f"blob {blob_id.hex()} is of a message, but marked as unfinished (ix u): sweeps would delete it",
            )
    for blob_id in _blob_ids(database):
        if owners[blob_id] > 1:
            findings.add(
                DamageKind.PAYLOAD_SHARED, f"blob {blob_id.hex()} is the payload (ix c) of {owners[blob_id]} messages"
            )
        elif not owners[blob_id] and database.get(keys.INDEXES, keys.STAGES + blob_id) is None:
            findings.add(
                DamageKind.PAYLOAD_ORPHAN, f"blob {blob_id.hex()} has pieces (ix c), but belongs to no message"
            )
