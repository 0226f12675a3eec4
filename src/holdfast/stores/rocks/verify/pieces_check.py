"""Checks of payloads in pieces: each is whole, each has one message, and what a crash cut off is told apart."""

from collections import Counter
from collections.abc import Iterator
from zlib import crc32

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Pieces
from holdfast.stores.findings import Findings
from holdfast.stores.formats.message_record import decode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.reads import MergedReads

_PIECE_BYTES = 256 << 10
_PLACE_SIZE = 8


def check_payload(database: MergedReads, pieces: Pieces, queue: object, id16: bytes, findings: Findings) -> None:
    """A message's pieces follow each other, have their sizes and, together, the checksum."""
    space = keys.PIECES + keys.place(pieces.place)
    count = -(-pieces.size // _PIECE_BYTES)
    found = right = checksum = 0
    for key, piece in database.items(keys.INDEXES, space, keys.after(space)):
        size = min(_PIECE_BYTES, pieces.size - found * _PIECE_BYTES)
        right += key[len(space) :] == found.to_bytes(4, "big") and len(piece) == size
        found += 1
        checksum = crc32(piece, checksum)
    findings.totals["places"] += found > 0
    if not found == right == count:
        findings.add(f"its payload has {found} pieces (ix c) of {count}, or of the wrong size", queue, id16)
    elif checksum != pieces.checksum:
        findings.add("its payload is damaged: its checksum does not match", queue, id16)


def check_places(database: MergedReads, found: int, findings: Findings) -> None:
    """After all messages of a shard, which had `found` places: no place is left over, and none has two owners."""
    staged = 0
    for key in database.scan(keys.INDEXES, keys.STAGES, keys.after(keys.STAGES)):
        space = keys.PIECES + key[len(keys.STAGES) :]
        sizes = [len(piece) for _, piece in database.items(keys.INDEXES, space, keys.after(space))]
        findings.totals["unfinished"] += 1
        findings.totals["unfinished_bytes"] += sum(sizes)
        staged += bool(sizes)
    # Every message's place was looked up: if there are no more than were found, there are no others.
    if sum(1 for _ in _places(database)) != found + staged:
        _find_strays(database, findings)


def _places(database: MergedReads) -> Iterator[bytes]:
    """One seek each."""
    lower, upper = keys.PIECES, keys.after(keys.PIECES)
    while (key := next(database.scan(keys.INDEXES, lower, upper), None)) is not None:
        place = key[len(keys.PIECES) : len(keys.PIECES) + _PLACE_SIZE]
        yield place
        lower = keys.after(keys.PIECES + place)


def _find_strays(database: MergedReads, findings: Findings) -> None:
    """Only of a damaged store: it takes memory for every large message."""
    owners: Counter[bytes] = Counter()
    for key, raw in database.items(keys.MESSAGES, b"", b"\xff" * (keys.P_SIZE + keys.ID_SIZE + 1)):
        try:
            pieces = decode_message(keys.parse_id(key[keys.P_SIZE :]), raw).envelope.pieces
        except StoreUnavailable:
            continue  # told already
        if pieces is not None:
            owners[keys.place(pieces.place)] += 1
    for key in database.scan(keys.INDEXES, keys.STAGES, keys.after(keys.STAGES)):
        place = key[len(keys.STAGES) :]
        if owners[place]:
            findings.add(f"place {place.hex()} is a message's, but is marked as unfinished (ix u): it would be deleted")
    for place in _places(database):
        if owners[place] > 1:
            findings.add(f"place {place.hex()} holds the payload (ix c) of {owners[place]} messages")
        elif not owners[place] and database.get(keys.INDEXES, keys.STAGES + place) is None:
            findings.add(f"place {place.hex()} has pieces of a payload (ix c), but there is no such message")
