"""Check payloads in pieces: each belongs to one message, an upload or an arrival, and is complete."""

from typing import Any
from zlib import crc32

from holdfast.model.ids import to_bytes
from holdfast.model.invariants.damage import DamageKind
from holdfast.stores.findings import Findings
from holdfast.stores.payloads.pieces import piece_count
from holdfast.stores.postgres.verify.directory_check import DatabaseDirectory
from holdfast.stores.postgres.verify.snapshots import RowStream, Snapshot

_PIECES = """
SELECT place, count(*) AS pieces, min(number) AS first, max(number) AS last, sum(octet_length(piece))::bigint AS size
FROM pieces GROUP BY place ORDER BY place
"""
_OWNERS = """
SELECT piece_place AS place, queue_key, id, piece_size, piece_checksum FROM items
WHERE piece_place IS NOT NULL AND piece_size IS NOT NULL AND piece_checksum IS NOT NULL ORDER BY piece_place
"""
_STAGES = "SELECT place, bytes, is_abandoned FROM stages ORDER BY place"
_PIECE = "SELECT piece FROM pieces WHERE place = $1 AND number = $2"


class PayloadsCheck:
    """The check of all payloads in pieces of one database. It reads pieces, messages and uploads together, in the order
    of their blob ids, so that memory does not grow with them."""

    def __init__(self, snapshot: Snapshot, directory: DatabaseDirectory, findings: Findings) -> None:
        self._snapshot = snapshot
        self._directory = directory
        self._findings = findings
        self._done = 0

    async def run(self) -> None:
        """Check all payloads."""
        streams = [self._snapshot.rows(sql) for sql in (_PIECES, _OWNERS, _STAGES)]
        while True:
            filled = [stream for stream in streams if await stream.fill()]
            if not filled:
                return
            blob_id = min(stream.head["place"] for stream in filled)
            pieces, owners, stages = [await _take(stream, blob_id) for stream in streams]
            await self._check(blob_id, pieces[0] if pieces else None, owners, stages)
            self._done += 1
            self._findings.progress("payloads", self._done, 0)

    async def _check(self, blob_id: int, pieces: Any | None, owners: list[Any], stages: list[Any]) -> None:
        findings = self._findings
        whole = [each for each in owners if each["queue_key"] not in self._directory.partial]
        for owner in whole:
            await self._check_owner(owner, pieces)
        if len(whole) > 1:
            ids = ", ".join(str(each["id"]) for each in whole)
            findings.add(DamageKind.PAYLOAD_SHARED, f"blob {blob_id} is the payload of {len(whole)} messages: {ids}")
        if whole and stages:
            title = self._directory.title(whole[0]["queue_key"])
            what = "its payload is marked as an upload or as abandoned: sweeps would delete it"
            findings.add(DamageKind.PAYLOAD_GIVEN_UP, what, title, to_bytes(whole[0]["id"]))
        if owners or blob_id in self._directory.arriving_blob_ids:
            return
        size = 0 if pieces is None else pieces["size"]
        if not stages:
            findings.add(
                DamageKind.PAYLOAD_ORPHAN, f"blob {blob_id} has {size} bytes in pieces, but belongs to nothing"
            )
            return
        findings.totals["unfinished"] += 1
        findings.totals["unfinished_bytes"] += size
        if not stages[0]["is_abandoned"] and stages[0]["bytes"] != size:
            what = (
                f"the upload of blob {blob_id} has {size} bytes in pieces, but counts {stages[0]['bytes']} for quotas"
            )
            findings.add(DamageKind.COUNT_MISMATCH, what)

    async def _check_owner(self, owner: Any, pieces: Any | None) -> None:
        findings, title = self._findings, self._directory.title(owner["queue_key"])
        id16, size, count = to_bytes(owner["id"]), owner["piece_size"], piece_count(owner["piece_size"])
        if pieces is None or (pieces["pieces"], pieces["first"], pieces["last"]) != (count, 0, count - 1):
            found = 0 if pieces is None else pieces["pieces"]
            findings.add(DamageKind.PAYLOAD_LOST, f"its payload has {found} of {count} pieces", title, id16)
            return
        if pieces["size"] != size:
            what = f"its payload has {pieces['size']} bytes instead of {size}"
            findings.add(DamageKind.PAYLOAD_SIZE, what, title, id16)
            return
        checksum = 0
        for number in range(count):
            checksum = crc32(await self._snapshot.value(_PIECE, owner["place"], number), checksum)
        if checksum != owner["piece_checksum"]:
            findings.add(DamageKind.PAYLOAD_DAMAGED, "its payload is damaged: its checksum does not match", title, id16)


async def _take(stream: RowStream, blob_id: int) -> list[Any]:
    """Return the rows of a blob id. Only messages can have several, and only in a damaged store."""
    rows = []
    while await stream.fill() and stream.head["place"] == blob_id:
        rows.append(stream.pop())
    return rows
