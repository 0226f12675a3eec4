"""Check tenants, queues, policies and the rows of the cluster in each database."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.model.ids import NODES, node_of
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.invariants.messages import check_id
from holdfast.model.invariants.side_records import check_config, check_names, check_policy
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.stores.findings import Findings
from holdfast.stores.postgres.cluster.slots import SLOTS
from holdfast.stores.postgres.verify.snapshots import Snapshot

_decode_policy = msgspec.msgpack.Decoder(QueuePolicy).decode
_decode_config = msgspec.msgpack.Decoder(TenantConfig).decode

_QUEUES = (
    "SELECT key, tenant, queue, tenant_id, queue_id, policy, lease_ms, max_lease_ms, keeps, drain_until, has_groups, "
    "highest_grouped, gone_at, moving_to FROM queues ORDER BY key"
)
_SUMS = (
    "SELECT queue_key, sum(waiting)::bigint AS ready, sum(delayed)::bigint AS delayed, "
    "sum(in_flight)::bigint AS in_flight, sum(failed)::bigint AS failed, sum(kept)::bigint AS kept, "
    "sum(bytes)::bigint AS bytes FROM all_counts GROUP BY queue_key"
)
_USAGE = (
    "SELECT tenant, coalesce(u.messages, 0) AS messages, coalesce(u.bytes, 0) AS bytes, "
    "coalesce(c.messages, 0)::bigint AS counted_messages, coalesce(c.bytes, 0)::bigint AS counted_bytes "
    "FROM usage AS u FULL JOIN ("
    "SELECT tenant, sum(waiting + in_flight + failed + kept) AS messages, sum(counts.bytes) AS bytes "
    "FROM counts JOIN queues ON key = queue_key GROUP BY tenant"
    ") AS c USING (tenant)"
)
_NOW = "SELECT (extract(epoch FROM transaction_timestamp()) * 1000)::bigint"


@dataclass(slots=True, kw_only=True)
class StoredQueue:
    """A row of `queues`. A deleted queue keeps its row, with `gone_at`, while the journal refers to it."""

    key: int
    ref: QueueRef
    queue_id: int
    is_gone: bool
    is_draining: bool
    has_groups: bool
    highest_grouped: int
    moving_to: int | None


@dataclass(slots=True)
class DatabaseDirectory:
    """The directory of one database, and the facts that the other checks need."""

    number: int
    now_ms: int
    # Rises with every change of the slot table.
    epoch: int
    # The number of each tenant.
    tenants: dict[str, int] = field(default_factory=dict)
    queues: dict[int, StoredQueue] = field(default_factory=dict)
    # The counts of each queue, by its key.
    sums: dict[int, dict[str, int]] = field(default_factory=dict)
    # Queues whose rows are being copied to this database or deleted from it: not all of them are there.
    partial: set[int] = field(default_factory=set)
    nodes: set[int] = field(default_factory=set)
    # The ids of arriving messages, and the blob ids of their payloads.
    arriving: set[int] = field(default_factory=set)
    arriving_blob_ids: set[int] = field(default_factory=set)
    _by_name: dict[QueueRef, list[StoredQueue]] = field(default_factory=dict)

    @property
    def highest_key(self) -> int:
        """The highest key of a queue."""
        return max(self.queues, default=0)

    def queue(self, key: int) -> StoredQueue | None:
        """Return the queue with this key, deleted or not."""
        return self.queues.get(key)

    def title(self, key: int) -> str:
        """Return the name of a queue, or its key if it has none."""
        found = self.queues.get(key)
        return f"queue number {key} of database {self.number}" if found is None else str(found.ref)

    def queues_of(self, ref: QueueRef, queue_id: int) -> list[StoredQueue]:
        """Return the rows of one queue that is not deleted. There is one, if it is on this database."""
        if not self._by_name:
            for each in self.queues.values():
                if not each.is_gone:
                    self._by_name.setdefault(each.ref, []).append(each)
        return [each for each in self._by_name.get(ref, ()) if each.queue_id == queue_id]

    def was_forgotten(self, key: int) -> bool:
        """Return whether a queue without a row may have been deleted so long ago that its row is deleted too."""
        return 0 < key < self.highest_key


async def read_directory(snapshot: Snapshot, findings: Findings, now_ms: int | None = None) -> DatabaseDirectory:
    """Read and check the directory of a database. `now_ms` is the time to judge by; None: the database's own."""
    epoch = await snapshot.value("SELECT epoch FROM cluster")
    own_ms = await snapshot.value(_NOW)
    directory = DatabaseDirectory(snapshot.number, own_ms if now_ms is None else now_ms, epoch)
    directory.tenants = await _read_tenants(snapshot, findings)
    async for row in snapshot.rows(_QUEUES):
        _read_queue(row, directory, findings)
    async for row in snapshot.rows(_SUMS):
        counts = dict(row)
        directory.sums[counts.pop("queue_key")] = counts
    await _check_usage(snapshot, findings)
    await _find_partial(snapshot, directory)
    await _check_slots(snapshot, findings)
    await _check_nodes(snapshot, directory, findings)
    _check_numbers(directory, findings)
    live = [each for each in directory.queues.values() if not each.is_gone and each.key not in directory.partial]
    findings.totals["queues"] += len(live)
    return directory


async def _read_tenants(snapshot: Snapshot, findings: Findings) -> dict[str, int]:
    tenants: dict[str, int] = {}
    by_number: defaultdict[int, list[str]] = defaultdict(list)
    async for row in snapshot.rows("SELECT tenant, tenant_id, config FROM tenants ORDER BY tenant"):
        name = row["tenant"]
        try:
            findings.add_all(check_config(name, _decode_config(row["config"])))
        except msgspec.MsgspecError as error:
            findings.add(DamageKind.TENANT_UNREADABLE, f"the configuration of tenant {name!r} is damaged: {error}")
        tenants[name] = row["tenant_id"]
        by_number[row["tenant_id"]].append(name)
    for number, names in by_number.items():
        if len(names) > 1:
            findings.add(DamageKind.NUMBER_SHARED, f"tenants {', '.join(names)} share number {number}")
    return tenants


async def _check_usage(snapshot: Snapshot, findings: Findings) -> None:
    """Check the usage of each tenant against the counts of its queues."""
    async for row in snapshot.rows(_USAGE):
        stored, counted = (row["messages"], row["bytes"]), (row["counted_messages"], row["counted_bytes"])
        if stored != counted:
            findings.add(
                DamageKind.COUNT_MISMATCH,
                f"the usage of tenant {row['tenant']!r}, for its quotas, is {stored[0]} messages and {stored[1]} "
                f"bytes, but the counts of its queues add up to {counted[0]} and {counted[1]}",
            )


def _read_queue(row: Any, directory: DatabaseDirectory, findings: Findings) -> None:
    ref = QueueRef(row["tenant"], row["queue"])
    queue = StoredQueue(
        key=row["key"],
        ref=ref,
        queue_id=row["queue_id"],
        is_gone=row["gone_at"] is not None,
        is_draining=row["drain_until"] is not None,
        has_groups=row["has_groups"],
        highest_grouped=row["highest_grouped"],
        moving_to=row["moving_to"],
    )
    directory.queues[queue.key] = queue
    if queue.is_gone:
        return
    findings.add_all(check_names(ref), ref)
    tenants = directory.tenants
    if ref.tenant not in tenants:
        findings.add(DamageKind.TENANT_LOST, f"the row of its tenant is missing on database {directory.number}", ref)
    elif tenants[ref.tenant] != row["tenant_id"]:
        findings.add(
            DamageKind.TENANT_LOST,
            f"its tenant has number {tenants[ref.tenant]}, but its row says {row['tenant_id']}",
            ref,
        )
    try:
        policy = _decode_policy(row["policy"])
    except msgspec.MsgspecError as error:
        findings.add(DamageKind.QUEUE_UNREADABLE, f"its policy is damaged: {error}", ref)
        return
    findings.add_all(check_policy(policy), ref)
    copied = (row["lease_ms"], row["max_lease_ms"], row["keeps"])
    if copied != (policy.lease_ms, policy.max_lease_ms, policy.keep_succeeded_ms > 0):
        findings.add(
            DamageKind.POLICY_MISMATCH,
            f"its columns lease_ms, max_lease_ms and keeps are {copied}, which its policy does not say",
            ref,
        )


async def _find_partial(snapshot: Snapshot, directory: DatabaseDirectory) -> None:
    """Find the queues of which some rows are on this database, and some on another."""
    decided = {row["to_shard"] for row in await snapshot.fetch("SELECT to_shard FROM slot_moves WHERE is_decided")}
    for queue in directory.queues.values():
        if queue.moving_to is None:
            continue
        if queue.moving_to == directory.number or queue.moving_to in decided:
            directory.partial.add(queue.key)


async def _check_slots(snapshot: Snapshot, findings: Findings) -> None:
    rows = await snapshot.fetch("SELECT slot, shard, home FROM slots ORDER BY slot")
    if [row["slot"] for row in rows] != list(range(SLOTS)) or any(row["shard"] < 0 or row["home"] < 0 for row in rows):
        findings.add(
            DamageKind.SLOTS_INVALID, f"the slot table of database {snapshot.number} has not each of the {SLOTS} slots"
        )


async def _check_nodes(snapshot: Snapshot, directory: DatabaseDirectory, findings: Findings) -> None:
    for row in await snapshot.fetch("SELECT node, highest_id FROM nodes"):
        node, highest = row["node"], row["highest_id"]
        directory.nodes.add(node)
        if not 0 <= node < NODES or (highest and node_of(highest) != node):
            findings.add(
                DamageKind.STORE_UNREADABLE, f"node number {node} is invalid, or its highest id {highest} is of another"
            )
        elif any(check_id(highest, directory.now_ms)):
            findings.add(DamageKind.ID_INVALID, f"the highest id {highest} of node {node} lies in the future")


def _check_numbers(directory: DatabaseDirectory, findings: Findings) -> None:
    """Check that no two queues of a tenant have the same number."""
    first: dict[tuple[str, int], QueueRef] = {}
    for queue in directory.queues.values():
        if queue.is_gone:
            continue
        other = first.setdefault((queue.ref.tenant, queue.queue_id), queue.ref)
        if other != queue.ref:
            findings.add(DamageKind.NUMBER_SHARED, f"shares its number {queue.queue_id} with {other}", queue.ref)


def counted(state: State) -> str:
    """Return the name of the count that a message in this state belongs to."""
    return "kept" if state is State.SUCCEEDED else state.value
