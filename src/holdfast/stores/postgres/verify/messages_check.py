"""Check every message by itself, and the counts of each queue against a full scan."""

from collections import Counter
from typing import Any

import msgspec

from holdfast.model.ids import node_of, to_bytes
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.invariants.messages import check_id, check_life, check_options
from holdfast.model.invariants.side_records import check_counts
from holdfast.model.message import State, headers_bytes
from holdfast.model.requests import StateDocument
from holdfast.model.rules.lifecycle import Lease, Life
from holdfast.stores.findings import Findings
from holdfast.stores.postgres.schema.rows import BEHIND, DELAYED, READY, STATES, decode_error
from holdfast.stores.postgres.verify.directory_check import DatabaseDirectory, counted
from holdfast.stores.postgres.verify.snapshots import Snapshot

# State documents of more bytes are read one by one, so that a page of them does not fill the memory.
_INLINE_STATE = 16 << 10
_ITEMS = f"""
SELECT
    queue_key, id, status, priority, deliver_after, created_at, bytes, attempt, failures, expiries, releases, version,
    lease_token, claimed_at, lease_expires_at, lease_ends_at, expires_at, settled_at, keep_until, error, reason,
    headers, group_name, correlation_id, max_retries, piece_place, piece_size, piece_checksum,
    octet_length(payload) AS payload_size, octet_length(state) AS state_size,
    CASE WHEN octet_length(state) <= {_INLINE_STATE} THEN state END AS state
FROM items ORDER BY queue_key, id
"""
_STATE = "SELECT state FROM items WHERE queue_key = $1 AND id = $2"
# A ready message may be due a little later than now, because the clock was set back since it was written.
_CLOCK_STEP_MS = 3_600_000
_REPORTED_EVERY = 1_000

_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_state = msgspec.msgpack.Decoder(StateDocument).decode


class MessagesCheck:
    """The check of all messages of one database. `nodes` has a message for each node number in their ids."""

    def __init__(self, snapshot: Snapshot, directory: DatabaseDirectory, findings: Findings, total: int) -> None:
        self._snapshot = snapshot
        self._directory = directory
        self._findings = findings
        self._total = total
        self.nodes: dict[int, int] = {}

    async def run(self) -> None:
        """Check the messages queue by queue, each in the order of its ids."""
        key: int | None = None
        found: Counter[str] = Counter()
        highest_grouped = 0
        seen: set[int] = set()
        async for row in self._snapshot.rows(_ITEMS):
            if row["queue_key"] != key:
                if key is not None:
                    self._end_queue(key, found, highest_grouped)
                    seen.add(key)
                key, found, highest_grouped = row["queue_key"], Counter(), 0
            if row["group_name"] is not None:
                highest_grouped = row["id"]
            await self._check(row, found)
        if key is not None:
            self._end_queue(key, found, highest_grouped)
            seen.add(key)
        for key in self._directory.sums.keys() - seen:
            self._end_queue(key, Counter(), 0)
        self._findings.progress("messages", self._findings.totals["rows"], self._total)

    async def _check(self, row: Any, found: Counter[str]) -> None:
        findings, id = self._findings, row["id"]
        title, id16 = self._directory.title(row["queue_key"]), _bytes_of(id)
        findings.totals["rows"] += 1
        if not findings.totals["rows"] % _REPORTED_EVERY:
            findings.progress("messages", findings.totals["rows"], self._total)
        state = STATES.get(row["status"])
        if state is None:
            findings.add(DamageKind.STATE_INVALID, f"has status {row['status']}, which is no state", title, id16)
            return
        found[counted(state)] += 1
        found["delayed"] += row["status"] == DELAYED
        found["bytes"] += row["bytes"]
        self.nodes.setdefault(node_of(id), id)
        findings.add_all(check_id(id, self._directory.now_ms), title, id16)
        lease, problems = _lease_of(row)
        findings.add_all(problems, title, id16)
        findings.add_all(self._check_order(row), title, id16)
        if row["state_size"] is not None:
            raw = row["state"]
            if raw is None:
                raw = await self._snapshot.value(_STATE, row["queue_key"], id)
            findings.add_all(_check_state(raw), title, id16)
        try:
            headers = _decode_headers(row["headers"]) if row["headers"] else {}
            life = _life_of(row, state, lease)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            findings.add(DamageKind.MESSAGE_UNREADABLE, f"is damaged: {error}", title, id16)
            return
        # A lease in part has been reported.
        unlike = {DamageKind.LEASE_MISSING} if problems else set()
        findings.add_all((each for each in check_life(life) if each.damage not in unlike), title, id16)
        findings.add_all(check_options(row["correlation_id"], row["max_retries"]), title, id16)
        findings.add_all(_check_sizes(row, headers), title, id16)

    def _check_order(self, row: Any) -> list[Problem]:
        """Check the message's position in the order of claims."""
        status, now_ms = row["status"], self._directory.now_ms
        if status == BEHIND and row["group_name"] is None:
            return [
                Problem(DamageKind.INDEX_MISSING, "waits behind the head of a group, but has no group: never claimable")
            ]
        if status == READY and row["deliver_after"] > now_ms + _CLOCK_STEP_MS:
            late = row["deliver_after"] - now_ms
            return [Problem(DamageKind.INDEX_MISMATCH, f"is among the messages that are due, but is due in {late} ms")]
        return []

    def _end_queue(self, key: int, found: Counter[str], highest_grouped: int) -> None:
        directory, findings = self._directory, self._findings
        queue = directory.queue(key)
        sums = directory.sums.get(key, {})
        messages = sum(found[counted(state)] for state in State)
        if queue is None:
            if messages or any(sums.values()):
                what = f"there is no such queue, but there are {messages} messages of it, and counts of {sums}"
                findings.add(DamageKind.QUEUE_UNKNOWN, what, directory.title(key))
            return
        if key in directory.partial:
            findings.totals["leftovers"] += messages
            return
        if queue.is_gone:
            findings.totals["leftovers"] += messages
        else:
            for name in ("ready", "delayed", "in_flight", "failed", "bytes"):
                findings.totals[name] += found[name]
            findings.totals["succeeded"] += found["kept"]
        names = ("ready", "delayed", "in_flight", "failed", "kept", "bytes")
        findings.add_all(check_counts(sums, {name: found[name] for name in names}), queue.ref)
        if highest_grouped and not queue.has_groups:
            what = "has messages in groups, but its row says that it never had any: claims would ignore their order"
            findings.add(DamageKind.GROUP_ORDER, what, queue.ref)
        elif highest_grouped > queue.highest_grouped:
            what = f"message {highest_grouped} is in a group, but the highest such id is noted as "
            findings.add(DamageKind.GROUP_ORDER, f"{what}{queue.highest_grouped}", queue.ref)


def _bytes_of(id: int) -> bytes:
    """Return the binary id, also of a number that is no id."""
    return to_bytes(id) if id >= 0 else id.to_bytes(8, "big", signed=True)


def _lease_of(row: Any) -> tuple[Lease | None, list[Problem]]:
    """Return the lease of a row, and the problem of one that is there in part."""
    names = ("lease_token", "claimed_at", "lease_expires_at", "lease_ends_at")
    missing = [name for name in names if row[name] is None]
    if len(missing) == len(names):
        return None, []
    if missing:
        return None, [Problem(DamageKind.LEASE_INVALID, f"its lease has no {', '.join(missing)}")]
    return (
        Lease(
            token=row["lease_token"],
            claimed_at=row["claimed_at"],
            expires_at=row["lease_expires_at"],
            ends_at=row["lease_ends_at"],
        ),
        [],
    )


def _life_of(row: Any, state: State, lease: Lease | None) -> Life:
    return Life(
        state=state,
        priority=row["priority"],
        visible_at=row["deliver_after"],
        expires_at=row["expires_at"],
        attempt=row["attempt"],
        failures=row["failures"],
        expiries=row["expiries"],
        releases=row["releases"],
        version=row["version"],
        lease=lease,
        error=decode_error(row["error"]),
        reason=row["reason"],
        settled_at=row["settled_at"],
        keep_until=row["keep_until"],
    )


def _check_state(raw: bytes) -> list[Problem]:
    try:
        _decode_state(raw)
    except msgspec.MsgspecError as error:
        return [Problem(DamageKind.STATE_DOCUMENT_UNREADABLE, f"its state document is damaged: {error}")]
    return []


def _check_sizes(row: Any, headers: dict[str, str]) -> list[Problem]:
    """Check the size of the payload and the headers against the noted one."""
    blob_id, size = row["piece_place"], row["payload_size"]
    if len({row[name] is None for name in ("piece_place", "piece_size", "piece_checksum")}) > 1:
        return [
            Problem(DamageKind.PAYLOAD_LOST, "its payload is in pieces, but its blob id, size or checksum is missing")
        ]
    if blob_id is not None and size:
        return [Problem(DamageKind.PAYLOAD_SIZE, f"its payload is in pieces, but its row has {size} bytes too")]
    found = (size if blob_id is None else row["piece_size"]) + headers_bytes(headers)
    if found != row["bytes"]:
        what = f"its payload and headers have {found} bytes instead of {row['bytes']}"
        return [Problem(DamageKind.PAYLOAD_SIZE, what)]
    return []
