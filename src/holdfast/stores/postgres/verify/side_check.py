"""Check idempotency keys, ledgers, schedules, arrivals and the record numbers of landed logs."""

from typing import Any

import msgspec

from holdfast.model.ids import to_bytes
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.invariants.side_records import check_key, check_open_claim, check_schedule
from holdfast.model.message import Receipt
from holdfast.model.schedules import Schedule
from holdfast.stores.findings import Findings
from holdfast.stores.postgres.schema.statements import WHOLE
from holdfast.stores.postgres.verify.directory_check import DatabaseDirectory
from holdfast.stores.postgres.verify.snapshots import Snapshot

_KEYS = "SELECT queue_key, key, id FROM seen_keys"
_CLAIMS = """
SELECT queue_key, consumer, number, receipts, closed_upto
FROM ledgers LEFT JOIN ledger_ends USING (queue_key, consumer)
"""
# An ack of a ledger acks the messages whose lease has not ended. So a claim with such a message is open.
_UNCLAIMED = """
SELECT queue_key, id, consumer, ledger_number FROM items
WHERE status = 1 AND consumer IS NOT NULL AND lease_expires_at > $1 AND NOT EXISTS (
    SELECT 1 FROM ledgers
    WHERE ledgers.queue_key = items.queue_key AND ledgers.consumer = items.consumer AND number = ledger_number
)
"""
_SCHEDULES = "SELECT queue_key, name, body, next_at FROM schedules"
_LANDED = """
SELECT node, epoch, lane, coalesce(lower(places), 0) AS first, lower_inf(places) OR upper_inf(places) AS is_endless
FROM landed
"""

_decode_receipts = msgspec.msgpack.Decoder(list[Receipt]).decode
_decode_schedule = msgspec.msgpack.Decoder(Schedule).decode
_decode_arrival = msgspec.msgpack.Decoder(list[list[Any]]).decode
_ID, _PLACE, _BYTES = (WHOLE.index(name) for name in ("id", "piece_place", "bytes"))


class SideCheck:
    """The checks of the rows beside messages in one database."""

    def __init__(self, snapshot: Snapshot, directory: DatabaseDirectory, findings: Findings) -> None:
        self._snapshot = snapshot
        self._directory = directory
        self._findings = findings

    async def check_keys(self) -> None:
        """Check idempotency keys."""
        done = 0
        async for row in self._snapshot.rows(_KEYS):
            done += 1
            self._findings.progress("keys", done, 0)
            if self._belongs(row["queue_key"], f"idempotency key {row['key']!r}"):
                problems = check_key(row["key"], row["id"], self._directory.now_ms)
                self._findings.add_all(problems, self._directory.title(row["queue_key"]))

    async def check_ledgers(self) -> None:
        """Check open claims of ledgers, and that each message claimed for a ledger is in one."""
        findings, title = self._findings, self._directory.title
        async for row in self._snapshot.rows(_CLAIMS):
            consumer, number = repr(row["consumer"]), row["number"]
            if not self._belongs(row["queue_key"], f"claim {number} of ledger {consumer}"):
                continue
            try:
                receipts = _decode_receipts(row["receipts"])
            except msgspec.MsgspecError as error:
                what = f"claim {number} of ledger {consumer} is damaged: {error}"
                findings.add(DamageKind.LEDGER_UNREADABLE, what, title(row["queue_key"]))
                continue
            findings.add_all(check_open_claim(consumer, number, receipts, row["closed_upto"]), title(row["queue_key"]))
        async for row in self._snapshot.rows(_UNCLAIMED, self._directory.now_ms):
            if row["queue_key"] not in self._directory.partial:
                what = f"was claimed as number {row['ledger_number']} of ledger {row['consumer']!r}, which has none"
                findings.add(DamageKind.LEDGER_LOST, what, title(row["queue_key"]), to_bytes(row["id"]))

    async def check_schedules(self) -> None:
        """Check schedules."""
        findings = self._findings
        async for row in self._snapshot.rows(_SCHEDULES):
            name, title = row["name"], self._directory.title(row["queue_key"])
            if not self._belongs(row["queue_key"], f"schedule {name!r}"):
                continue
            try:
                schedule = _decode_schedule(row["body"])
            except msgspec.MsgspecError as error:
                findings.add(DamageKind.SCHEDULE_UNREADABLE, f"schedule {name!r} is damaged: {error}", title)
                continue
            findings.add_all(check_schedule(name, schedule), title)
            if schedule.next_at != row["next_at"]:
                what = f"schedule {name!r} is listed for {row['next_at']}, but its next tick is {schedule.next_at}"
                findings.add(DamageKind.SCHEDULE_INVALID, what, title)

    async def read_arrivals(self) -> None:
        """Check messages that arrive from another database, and note their ids and blob ids."""
        findings, directory = self._findings, self._directory
        for key in await self._snapshot.fetch("SELECT move FROM arrivals"):
            [row] = await self._snapshot.fetch("SELECT * FROM arrivals WHERE move = $1", key["move"])
            what = f"arrival {row['move']} from {row['from_queue']}"
            findings.totals["leftovers"] += 1
            if not self._belongs(row["queue_key"], what):
                continue
            title = directory.title(row["queue_key"])
            try:
                body = _decode_arrival(row["body"])
                sizes = [each[_BYTES] for each in body]
                directory.arriving.update(each[_ID] for each in body)
                directory.arriving_blob_ids.update(each[_PLACE] for each in body if each[_PLACE] is not None)
            except (msgspec.MsgspecError, IndexError) as error:
                findings.add(DamageKind.ARRIVAL_INVALID, f"{what} is damaged: {error}", title)
                continue
            if (row["messages"], row["bytes"]) != (len(sizes), sum(sizes)):
                counted = f"counts {row['messages']} messages with {row['bytes']} bytes for quotas"
                found = f"has {len(sizes)} with {sum(sizes)}"
                findings.add(DamageKind.ARRIVAL_INVALID, f"{what} {counted}, but {found}", title)

    async def check_landed(self) -> None:
        """Check the record numbers of servers' logs that are noted as stored."""
        async for row in self._snapshot.rows(_LANDED):
            if row["first"] < 0 or row["is_endless"]:
                self._findings.add(
                    DamageKind.LANDED_INVALID,
                    f"the log of server {row['node']} (epoch {row['epoch']}) is noted as landed without a first or a "
                    "last number: calls that it still has would be dropped",
                )

    def _belongs(self, key: int, what: str) -> bool:
        """Return whether a row is of a queue that exists. A row of a deleted queue is a leftover."""
        queue = self._directory.queue(key)
        if queue is not None and not queue.is_gone:
            return key not in self._directory.partial
        if queue is None and not self._directory.was_forgotten(key):
            self._findings.add(
                DamageKind.QUEUE_UNKNOWN, f"{what} is of a queue that never was", self._directory.title(key)
            )
        else:
            self._findings.totals["leftovers"] += 1
        return False
