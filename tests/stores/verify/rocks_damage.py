"""Each kind of damage of docs/verify.md, planted in the keys of an embedded store."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.model.ids import from_bytes, to_bytes
from holdfast.model.message import Envelope
from holdfast.stores.formats.message_record import decode_life, decode_message, encode_message
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.recovery.marker import MARKER
from holdfast.stores.values import QueueRow
from tests.stores.rocks.made_store import DIRECTORY, GONE, GROUPED, IX, JOBS, JR, LE, LI, OTHER, VI, Damager, M

STRANGER = to_bytes(12345)
_QUEUE_ROW = keys.QUEUES + JOBS[:4] + b"jobs"


def _rewrite(d: Damager, name: str, change: Callable[[Envelope], Envelope]) -> None:
    """Change a message's record, with a valid checksum."""
    id16 = d.ids[name]
    message = decode_message(from_bytes(id16), d.get(M, JOBS + id16))
    d.put(M, JOBS + id16, encode_message(change(message.envelope), message.first))


def _lease(d: Damager, **changes: Any) -> None:
    """Change the lease of the message in flight."""
    key = JOBS + d.ids["in flight"]
    lease = decode_life(d.get(LE, key))[1].lease
    assert lease is not None
    d.change_life(LE, key, lease=replace(lease, **changes))


def _life(d: Damager, name: str, **changes: Any) -> None:
    d.change_life(IX, keys.LIVES + JOBS + d.ids[name], **changes)


def _policy(d: Damager, **changes: Any) -> None:
    row = msgspec.msgpack.decode(d.get(DIRECTORY, _QUEUE_ROW), type=QueueRow)
    d.put(DIRECTORY, _QUEUE_ROW, msgspec.msgpack.encode(replace(row, policy=replace(row.policy, **changes))))


def _piece(d: Damager, change: Callable[[bytes], bytes | None]) -> None:
    key = keys.PIECES + keys.pack_blob_id(keys.parse_id(d.ids["large"])) + (2).to_bytes(4, "big")
    changed = change(d.get(IX, key))
    d.delete(IX, key) if changed is None else d.put(IX, key, changed)


def _count(d: Damager, place: int) -> None:
    raw = d.get(DIRECTORY, keys.COUNTERS + JOBS)
    more = keys.instant(keys.parse_instant(raw[place * 8 :]) + 1)
    d.put(DIRECTORY, keys.COUNTERS + JOBS, raw[: place * 8] + more + raw[place * 8 + 8 :])


def _first_event(d: Damager, column: int, value: object) -> None:
    key, [row, *rest] = d.first_block()
    row[column] = value
    d.put(JR, key, msgspec.msgpack.encode([row, *rest]))


def _forget_events(d: Damager) -> None:
    # The same millisecond and node, a sequence that was not reached.
    stranger = to_bytes(keys.parse_id(d.ids["urgent"]) + 3_000)
    d.put(M, JOBS + stranger, d.get(M, JOBS + d.ids["urgent"]))


def _schedule(d: Damager, **fields: object) -> None:
    every = {"name": "s", "message": {"payload": b"x"}, "cron": "0 3 * * *"} | fields
    d.put(IX, keys.SCHEDULES + OTHER + b"s", msgspec.msgpack.encode(every))


def _move_by_hand(d: Damager) -> None:
    d.put(M, GROUPED + d.ids["ready"], d.get(M, JOBS + d.ids["ready"]))
    d.delete(M, JOBS + d.ids["ready"])


def _share_payload(d: Damager) -> None:
    pieces = decode_message(from_bytes(d.ids["large"]), d.get(M, JOBS + d.ids["large"])).envelope.pieces
    _rewrite(d, "ready", lambda envelope: replace(envelope, payload=b"", pieces=pieces))


ROCKS_DAMAGE: Mapping[str, Callable[[Damager], object]] = {
    "message-cut": lambda d: d.put(M, (key := JOBS + d.ids["ready"]), d.get(M, key)[:10]),
    "message-deleted": lambda d: d.delete(M, JOBS + d.ids["failed"]),
    "message-doubled": lambda d: d.put(M, GROUPED + d.ids["ready"], d.get(M, JOBS + d.ids["ready"])),
    "message-moved-by-hand": _move_by_hand,
    "message-of-unknown-queue": lambda d: d.put(M, GONE + d.ids["ready"], d.get(M, JOBS + d.ids["ready"])),
    "id-never-given": lambda d: d.put(DIRECTORY, keys.META + b"highest id", keys.instant(5)),
    "state-contradicted": lambda d: d.put(
        IX, keys.LIVES + JOBS + d.ids["in flight"], d.get(LE, JOBS + d.ids["in flight"])
    ),
    "lease-gone": lambda d: _life(d, "retried", state="in_flight"),
    "lease-left-behind": lambda d: d.change_life(LE, JOBS + d.ids["in flight"], state="ready", lease=None),
    "lease-token-cut": lambda d: _lease(d, token=b"short"),
    "lease-too-long": lambda d: _lease(d, ends_at=1),
    "lease-without-end": lambda d: d.delete(LI, d.key_of(LI, JOBS, "in flight")),
    "version-set-back": lambda d: d.change_life(LE, JOBS + d.ids["in flight"], version=0),
    "endings-above-claims": lambda d: _life(d, "retried", failures=9),
    "dead-letter-without-reason": lambda d: _life(d, "failed", reason=None),
    "success-kept-for-ever": lambda d: _life(d, "kept", keep_until=None),
    "priority-out-of-range": lambda d: _life(d, "retried", priority=300),
    "correlation-id-invalid": lambda d: _rewrite(d, "ready", lambda e: replace(e, given_correlation_id="two words")),
    "payload-deleted": lambda d: _piece(d, lambda piece: None),
    "payload-cut": lambda d: _piece(d, lambda piece: piece[:-1]),
    "payload-changed": lambda d: _piece(d, lambda piece: b"!" * len(piece)),
    "short-payload-changed": lambda d: d.put(M, (key := JOBS + d.ids["ready"]), d.get(M, key)[:-1] + b"!"),
    "payload-without-message": lambda d: d.put(IX, keys.PIECES + keys.pack_blob_id(12345) + bytes(4), b"piece"),
    "payload-shared": _share_payload,
    "payload-given-up": lambda d: d.put(IX, keys.STAGES + keys.pack_blob_id(keys.parse_id(d.ids["large"])), b""),
    "state-document-cut": lambda d: d.put(IX, keys.STATES + JOBS + d.ids["retried"], b"\xc1"),
    "state-document-deleted": lambda d: d.delete(IX, keys.STATES + JOBS + d.ids["retried"]),
    "state-document-orphaned": lambda d: d.put(IX, keys.STATES + JOBS + STRANGER, msgspec.msgpack.encode({})),
    "ready-message-hidden": lambda d: d.delete(VI, d.key_of(VI, JOBS, "urgent")),
    "index-entry-orphaned": lambda d: d.put(VI, keys.level(JOBS, 3) + keys.instant(5) + STRANGER, b""),
    "index-entry-wrong": lambda d: d.put(VI, keys.level(JOBS, 3) + keys.instant(5) + d.ids["urgent"], b""),
    "ttl-forgotten": lambda d: d.delete(IX, d.key_of(IX, keys.TTLS, "ttl")),
    "dead-letter-hidden": lambda d: d.delete(IX, keys.DEAD + JOBS + d.ids["failed"]),
    "group-member-hidden": lambda d: d.delete(VI, d.key_of(VI, GROUPED, "idle 1")),
    "group-overtaken": lambda d: d.put(VI, keys.level(GROUPED, 50) + keys.instant(5) + d.ids["idle 2"], b""),
    "group-not-held": lambda d: d.delete(IX, keys.BUSY + GROUPED + keys.hashed("busy")),
    "count-wrong": lambda d: _count(d, 0),
    "bytes-wrong": lambda d: _count(d, 5),
    "counts-of-unknown-queue": lambda d: d.put(DIRECTORY, keys.COUNTERS + GONE, d.get(DIRECTORY, keys.COUNTERS + JOBS)),
    "key-cut": lambda d: d.put(IX, keys.SEEN + JOBS + b"order-7", b"?"),
    "key-of-no-message": lambda d: d.put(IX, (key := keys.SEEN + JOBS + b"order-7"), b"\x7f" + d.get(IX, key)[1:]),
    "key-never-forgotten": lambda d: [
        d.delete(IX, key) for key in d.keys(IX, keys.SEEN_ENDS) if key.endswith(b"order-7")
    ],
    "key-deleted": lambda d: d.delete(IX, keys.SEEN + JOBS + b"order-7"),
    "ledger-claim-cut": lambda d: [d.put(IX, key, b"\xc1") for key in d.keys(IX, keys.LEDGER + OTHER)],
    "ledger-claim-reopened": lambda d: d.put(IX, keys.CLOSED + OTHER + keys.hashed("spark"), keys.instant(7)),
    "schedule-cut": lambda d: d.put(IX, keys.SCHEDULES + OTHER + b"s", b"\xc1"),
    "schedule-repeats": lambda d: _schedule(d, last_at=9, next_at=9),
    "policy-cut": lambda d: d.put(DIRECTORY, _QUEUE_ROW, b"\xc1"),
    "policy-out-of-range": lambda d: _policy(d, lease_ms=0),
    "policy-copied-wrong": lambda d: d.put(DIRECTORY, keys.LIMITED + JOBS, b""),
    "tenant-deleted": lambda d: d.delete(DIRECTORY, keys.TENANTS + b"acme"),
    "tenant-config-cut": lambda d: d.put(DIRECTORY, keys.TENANTS + b"acme", b"\xc1"),
    "queue-deleted": lambda d: d.delete(DIRECTORY, _QUEUE_ROW),
    "queue-unlisted": lambda d: d.delete(DIRECTORY, keys.QUEUE_NAMES + JOBS),
    "number-of-two-queues": lambda d: d.put(
        DIRECTORY,
        keys.QUEUES + JOBS[:4] + b"twin",
        d.get(DIRECTORY, _QUEUE_ROW).replace(b"\xa4jobs", b"\xa4twin"),
    ),
    "number-given-again": lambda d: d.delete(DIRECTORY, keys.QUEUE_NAMES + GROUPED),
    "event-cut": lambda d: d.put(JR, d.first_block()[0], b"\xc1"),
    "event-deleted": lambda d: d.delete(JR, d.keys(JR, b"\0")[3]),
    "event-of-unknown-queue": lambda d: _first_event(d, 0, keys.prefix(9, 9)),
    "event-out-of-order": lambda d: _first_event(d, 4, 7),
    "state-changed-by-hand": lambda d: d.change_life(
        LE, JOBS + d.ids["in flight"], state="failed", lease=None, reason="final", settled_at=1
    ),
    "version-changed-by-hand": lambda d: d.change_life(LE, JOBS + d.ids["in flight"], version=9),
    "message-unrecorded": _forget_events,
    "node-number-lost": lambda d: d.put(DIRECTORY, keys.META + b"node", b"?"),
    "foreign-entry": lambda d: d.put(DIRECTORY, b"z/what", b""),
}


def _swap_shards(store: Path) -> None:
    first, second = store / "shards-1" / "0", store / "shards-1" / "1"
    for name in ("db", MARKER):
        (first / name).rename(store / "aside")
        (second / name).rename(first / name)
        (store / "aside").rename(second / name)


# Planted in the directory of a store with two shards.
ROCKS_SHARD_DAMAGE: Mapping[str, Callable[[Path], None]] = {"queue-on-wrong-database": _swap_shards}
