"""Checks of the groups, idempotency keys, claim ledgers and schedules of one queue."""

import struct
from collections import Counter
from itertools import islice

import msgspec

from holdfast.model.invariants.damage import DamageKind
from holdfast.model.invariants.side_records import check_open_claim, check_schedule
from holdfast.model.message import Receipt
from holdfast.model.schedules import Schedule
from holdfast.stores.findings import Findings
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.verify.index_check import CHUNK

_SEEN = struct.Struct(">QQ")
_Claim = tuple[int, list[Receipt]]


def check_groups(
    database: MergedReads, p: bytes, in_flight: Counter[bytes], queue: object, findings: Findings
) -> list[bytes]:
    """Check the number of messages in flight of each group.

    Return the keys that the heads of groups must have in `vi`: those of groups without a message in flight.
    """
    space = keys.BUSY + p
    busy: dict[bytes, int] = {}
    for key, raw in database.items(keys.INDEXES, space, keys.after(space)):
        busy[key[len(space) :]] = int.from_bytes(raw, "big")
    for name in busy.keys() | in_flight.keys():
        if busy.get(name, 0) != in_flight[name] or busy.get(name) == 0:
            findings.add(
                DamageKind.GROUP_IN_FLIGHT,
                f"group {name.hex()} counts {busy.get(name, 0)} in flight (ix b), a full scan finds {in_flight[name]}",
                queue,
            )
    return _heads(database, p, set(in_flight))


def _heads(database: MergedReads, p: bytes, busy: set[bytes]) -> list[bytes]:
    """Return the keys in `vi` of the heads of all groups that are not busy, with one seek for each group."""
    space = keys.GROUPS + p
    lower, upper = space, keys.after(space)
    heads: list[bytes] = []
    while (key := next(database.scan(keys.INDEXES, lower, upper), None)) is not None:
        rest = key[len(space) :]
        name, id16 = rest[: keys.HASH_SIZE], rest[keys.HASH_SIZE : keys.HASH_SIZE + keys.ID_SIZE]
        if name not in busy:
            order = rest[keys.HASH_SIZE + keys.ID_SIZE :]  # priority 1 | visible_at 8, as in `vi`
            heads.append(p + order + id16)
        lower = keys.after(space + name)
    return heads


def check_seen(database: MergedReads, p: bytes, queue: object, highest_id: int, findings: Findings) -> None:
    """Check that each idempotency key can be read and has its end."""
    space = keys.SEEN + p
    remaining = database.items(keys.INDEXES, space, keys.after(space))
    while chunk := list(islice(remaining, CHUNK)):
        ends: list[bytes] = []
        names: list[bytes] = []
        for key, raw in chunk:
            name = key[len(space) :]
            if len(raw) < _SEEN.size:
                findings.add(DamageKind.KEY_UNREADABLE, f"idempotency key {name!r} (ix i) is damaged", queue)
                continue
            id, until = _SEEN.unpack_from(raw)
            if id > highest_id:
                findings.add(
                    DamageKind.KEY_ID_INVALID,
                    f"idempotency key {name!r} (ix i) names a message with an id that was never given",
                    queue,
                )
            ends.append(keys.SEEN_ENDS + keys.instant(until) + p + name)
            names.append(name)
        for name, end in zip(names, database.get_many(keys.INDEXES, ends) if ends else [], strict=True):
            if end is None:
                findings.add(
                    DamageKind.KEY_END_MISMATCH,
                    f"idempotency key {name!r} (ix i) has no end (ix e): it would be kept for ever",
                    queue,
                )


def check_ledgers(database: MergedReads, p: bytes, queue: object, findings: Findings) -> None:
    """Check that the claims of each ledger can be read, and that none is open under a closed number."""
    closed: dict[bytes, int] = {}
    space = keys.CLOSED + p
    for key, raw in database.items(keys.INDEXES, space, keys.after(space)):
        if len(raw) == 8:
            closed[key[len(space) :]] = keys.parse_instant(raw)
        else:
            findings.add(
                DamageKind.LEDGER_UNREADABLE, f"the end of ledger {key[len(space) :].hex()} (ix o) is damaged", queue
            )
    space = keys.LEDGER + p
    for key, raw in database.items(keys.INDEXES, space, keys.after(space)):
        consumer, number = key[len(space) : -8], keys.parse_instant(key[-8:])
        try:
            _, receipts = msgspec.msgpack.decode(raw, type=_Claim)
        except msgspec.MsgspecError as error:
            findings.add(
                DamageKind.LEDGER_UNREADABLE,
                f"claim {number} of ledger {consumer.hex()} (ix l) is damaged: {error}",
                queue,
            )
            continue
        shown = f"{consumer.hex()} (ix l)"
        findings.add_all(check_open_claim(shown, number, receipts, closed.get(consumer)), queue)


def check_schedules(database: MergedReads, p: bytes, queue: object, highest_id: int, findings: Findings) -> None:
    """Check that each schedule is stored under its name, has either a cron line or an interval, and has valid ticks."""
    space = keys.SCHEDULES + p
    for key, raw in database.items(keys.INDEXES, space, keys.after(space)):
        name = key[len(space) :]
        try:
            schedule = msgspec.msgpack.decode(raw, type=Schedule)
        except msgspec.MsgspecError as error:
            findings.add(DamageKind.SCHEDULE_UNREADABLE, f"schedule {name!r} (ix h) is damaged: {error}", queue)
            continue
        findings.add_all(check_schedule(name.decode(errors="replace"), schedule), queue)
        if schedule.last_id is not None and schedule.last_id > highest_id:
            findings.add(
                DamageKind.SCHEDULE_INVALID,
                f"schedule {schedule.name!r} (ix h) names a message with an id that was never given",
                queue,
            )
