"""Each kind of damage of docs/verify.md, planted in the rows of a PostgreSQL store by one or more statements.

`{name}` stands for the id of a message. The store of the last section has two databases.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.model.policy import QueuePolicy
from holdfast.model.schedules import Schedule
from tests.stores.postgres.verify.made_store import MadeStore

# One or more statements, or a function.
Plant = str | tuple[str, ...] | Callable[[MadeStore], None]

_JOBS = "(SELECT key FROM queues WHERE queue = 'jobs' AND gone_at IS NULL)"
_GROUPED = "(SELECT key FROM queues WHERE queue = 'grouped' AND gone_at IS NULL)"
_OTHER = "(SELECT key FROM queues WHERE queue = 'other' AND gone_at IS NULL)"
_LEASE = r"lease_token = '\x00112233445566778899aabbccddeeff', claimed_at = 1, lease_expires_at = 2, lease_ends_at = 3"
_PLACE = "(SELECT piece_place FROM items WHERE id = {large})"
# A message whose number of milliseconds lies years ahead.
_FUTURE = "(1000000000000::bigint << 22)"
_ITEM = (
    "INSERT INTO items (queue_key, id, status, priority, deliver_after, created_at, bytes, is_json, payload) "
    "SELECT {key}, {id}, status, priority, deliver_after, created_at, bytes, is_json, payload FROM items "
    "WHERE id = {{ready}}"
)


def _change(column: str, table: str, where: str, kind: type[Any], change: Callable[[Any], Any]) -> Plant:
    """Change an encoded column."""

    def plant(made: MadeStore) -> None:
        [row] = made.sql(f"SELECT {column} FROM {table} WHERE {where}")
        raw = msgspec.msgpack.encode(change(msgspec.msgpack.decode(row[column], type=kind)))
        made.sql(f"UPDATE {table} SET {column} = $1 WHERE {where}", raw)

    return plant


POSTGRES_DAMAGE: Mapping[str, Plant] = {
    "message-cut": r"UPDATE items SET headers = '\xc1' WHERE id = {released}",
    "message-deleted": "DELETE FROM items WHERE id = {ready}",
    "message-doubled": _ITEM.format(key=_OTHER, id="id"),
    "message-moved-by-hand": f"UPDATE items SET queue_key = {_OTHER} WHERE id = {{ready}}",
    "message-of-unknown-queue": "UPDATE items SET queue_key = 999999 WHERE id = {ready}",
    "id-never-given": _ITEM.format(key="queue_key", id=_FUTURE),
    "state-contradicted": "UPDATE items SET status = 9 WHERE id = {ready}",
    "lease-gone": (
        "UPDATE items SET lease_token = NULL, claimed_at = NULL, lease_expires_at = NULL, lease_ends_at = NULL "
        "WHERE id = {in flight}"
    ),
    "lease-left-behind": f"UPDATE items SET {_LEASE} WHERE id = {{ready}}",
    "lease-token-cut": r"UPDATE items SET lease_token = '\x00' WHERE id = {in flight}",
    "lease-too-long": "UPDATE items SET lease_expires_at = lease_ends_at + 1 WHERE id = {in flight}",
    "lease-without-end": "UPDATE items SET lease_expires_at = NULL WHERE id = {in flight}",
    "version-set-back": "UPDATE items SET version = 0 WHERE id = {in flight}",
    "endings-above-claims": "UPDATE items SET failures = 9 WHERE id = {retried}",
    "dead-letter-without-reason": "UPDATE items SET reason = NULL WHERE id = {failed}",
    "success-kept-for-ever": "UPDATE items SET keep_until = NULL WHERE id = {kept}",
    "priority-out-of-range": "UPDATE items SET priority = 300 WHERE id = {ready}",
    "correlation-id-invalid": "UPDATE items SET correlation_id = 'two words' WHERE id = {ready}",
    "payload-deleted": f"DELETE FROM pieces WHERE place = {_PLACE} AND number = 2",
    "payload-cut": f"UPDATE pieces SET piece = substring(piece FOR 9) WHERE place = {_PLACE} AND number = 2",
    "payload-changed": (
        f"UPDATE pieces SET piece = overlay(piece PLACING '!'::bytea FROM 9) WHERE place = {_PLACE} AND number = 2"
    ),
    "payload-without-message": "INSERT INTO pieces (place, number, piece) VALUES (12345, 0, 'piece')",
    "payload-shared": (
        f"UPDATE items SET piece_place = {_PLACE}, piece_size = o.piece_size, piece_checksum = o.piece_checksum "
        "FROM items AS o WHERE o.id = {large} AND items.id = {other large}"
    ),
    "payload-given-up": f"INSERT INTO stages (place, is_abandoned) VALUES ({_PLACE}, true)",
    "state-document-cut": r"UPDATE items SET state = '\xc1' WHERE id = {retried}",
    "ready-message-hidden": "UPDATE items SET status = 4 WHERE id = {ready}",
    "index-entry-wrong": "UPDATE items SET deliver_after = deliver_after + 86400000 WHERE id = {ready}",
    "group-member-hidden": "UPDATE items SET status = 4 WHERE id = {idle 1}",
    "group-overtaken": "UPDATE items SET status = 0 WHERE id = {idle 2}",
    "group-not-held": "UPDATE items SET status = 0 WHERE id = {busy 2}",
    "group-flag-lost": "UPDATE queues SET has_groups = false WHERE queue = 'grouped'",
    "count-wrong": f"INSERT INTO count_lines VALUES ({_JOBS}, 1, 0, 0, 0, 0, 0)",
    "bytes-wrong": f"INSERT INTO count_lines VALUES ({_JOBS}, 0, 0, 0, 0, 0, 7)",
    "usage-wrong": "UPDATE usage SET bytes = bytes + 7",
    "counts-of-unknown-queue": "INSERT INTO count_lines VALUES (999999, 1, 0, 0, 0, 0, 0)",
    "key-of-no-message": f"UPDATE seen_keys SET id = {_FUTURE} WHERE key = 'order-7'",
    "ledger-claim-cut": r"UPDATE ledgers SET receipts = '\xc1'",
    "ledger-claim-reopened": "UPDATE ledger_ends SET closed_upto = 7",
    "ledger-claim-deleted": "DELETE FROM ledgers",
    "schedule-cut": r"UPDATE schedules SET body = '\xc1' WHERE name = 'nightly'",
    "schedule-repeats": _change(
        "body", "schedules", "name = 'nightly'", Schedule, lambda each: replace(each, last_at=each.next_at)
    ),
    "schedule-at-wrong-time": "UPDATE schedules SET next_at = next_at + 1 WHERE name = 'nightly'",
    "policy-cut": r"UPDATE queues SET policy = '\xc1' WHERE queue = 'jobs'",
    "policy-out-of-range": _change(
        "policy", "queues", "queue = 'jobs'", QueuePolicy, lambda each: replace(each, max_retries=-1)
    ),
    "policy-copied-wrong": "UPDATE queues SET lease_ms = lease_ms + 1 WHERE queue = 'jobs'",
    "tenant-deleted": "DELETE FROM tenants WHERE tenant = 'acme'",
    "tenant-config-cut": r"UPDATE tenants SET config = '\xc1' WHERE tenant = 'acme'",
    "queue-deleted": "DELETE FROM queues WHERE queue = 'jobs'",
    "queue-unlisted": "DELETE FROM directory WHERE queue = 'jobs'",
    "number-of-two-queues": (
        f"UPDATE queues SET queue_id = (SELECT queue_id FROM queues WHERE key = {_GROUPED}) WHERE queue = 'jobs'"
    ),
    "number-given-again": "UPDATE tenants SET next_queue_id = 1 WHERE tenant = 'acme'",
    "event-cut": "UPDATE journal SET event = 99 WHERE id = {ready}",
    # The middle of a batch of events.
    "event-deleted": "DELETE FROM journal WHERE id = {busy 2}",
    "event-of-unknown-queue": "UPDATE journal SET queue_key = 999999 WHERE id = {ready}",
    "event-out-of-order": "DELETE FROM journal WHERE id = {failed} AND event = 1",
    "state-changed-by-hand": (
        "UPDATE items SET status = 3, reason = 'final', settled_at = created_at WHERE id = {ready}"
    ),
    "version-changed-by-hand": "UPDATE items SET version = 9 WHERE id = {in flight}",
    "message-unrecorded": "DELETE FROM journal WHERE id = {ready}",
    "node-number-lost": "DELETE FROM nodes",
    "slot-table-cut": "DELETE FROM slots WHERE slot = 17",
    "database-number-lost": "UPDATE members SET shard = 7",
    "queue-blocked": "UPDATE queues SET moving_to = 1 WHERE queue = 'jobs'",
    "log-range-endless": ("INSERT INTO landed (node, epoch, lane, places) VALUES (gen_random_uuid(), 1, 0, '{[5,)}')"),
    "arrival-cut": (
        "INSERT INTO arrivals (move, from_shard, from_queue, queue_key, messages, bytes, body) "
        rf"VALUES (gen_random_uuid(), 1, 'acme/far', {_JOBS}, 1, 1, '\xc1')"
    ),
}

# Planted on each of two databases, of which one has the row in question.
POSTGRES_CLUSTER_DAMAGE: Mapping[str, Plant] = {
    "slot-tables-differ": "UPDATE slots SET home = 0 WHERE slot = 17 AND (SELECT shard FROM cluster) = 0",
    "queue-on-wrong-database": (
        "UPDATE slots SET shard = 1 - shard",
        "UPDATE cluster SET epoch = 2",
    ),
    "copy-differs": (
        "UPDATE tenants SET config = (SELECT config FROM tenants WHERE tenant = 'globex') "
        "WHERE tenant = 'acme' AND home_revision > 0"
    ),
    "grant-exceeded": ("UPDATE tenants SET granted_messages = 5000, grant_version = 99 WHERE tenant = 'acme'"),
}


def _forget_landed(made: MadeStore, log: Path) -> None:
    for database in range(len(made.urls)):
        made.sql("DELETE FROM landed", database=database)


def _cut_log(made: MadeStore, log: Path) -> None:
    """Flip a byte in the middle of the records."""
    path = sorted(log.glob("*.wal"))[0]
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"x" * 100)] ^= 1
    path.write_bytes(raw)


# Planted in the databases, or in a copy of a server's log.
POSTGRES_LOG_DAMAGE: Mapping[str, Callable[[MadeStore, Path], None]] = {
    "log-cut": _cut_log,
    "log-range-lost": _forget_landed,
}
