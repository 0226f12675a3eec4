"""The check of messages that are still to be moved from the legacy layout: none of them is in the store as well."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.legacy.entries import LegacyMessage
from holdfast.stores.rocks.legacy.legacy_database import LegacyDatabase
from holdfast.stores.rocks.legacy.message_import import LEGACY_QUEUE, own_id
from holdfast.stores.rocks.legacy.online.move_records import MOVE_STATE, Moved, MoveState, decode_move_state

_decode_ref = msgspec.msgpack.Decoder(QueueRef).decode


def check_legacy(path: Path | None, shards: Sequence[MergedReads], findings: Findings) -> None:
    """Check the legacy database in `path` and the records of its move. None: the store has no such database."""
    state, moved = _read_records(shards, findings)
    if path is None:
        if state is not None or moved:
            findings.add(
                DamageKind.ENTRY_UNKNOWN,
                f"{len(moved)} records of a move from the legacy layout, but no legacy database",
            )
        return
    try:
        database = LegacyDatabase(path, order=None if state is None else state.order)
    except HoldfastError as error:
        findings.add(DamageKind.STORE_UNREADABLE, error.message)
        return
    try:
        for _, found in database.read():
            if isinstance(found, LegacyMessage) and found.id not in moved:
                findings.totals["legacy"] += 1
                _check_message(found, shards, findings)
    finally:
        database.close()


def _read_records(shards: Sequence[MergedReads], findings: Findings) -> tuple[MoveState | None, set[bytes]]:
    state: MoveState | None = None
    moved: set[bytes] = set()
    space = keys.LEGACY_MOVED
    for shard in shards:
        if (raw := shard.get(keys.DIRECTORY, MOVE_STATE)) is not None:
            try:
                state = decode_move_state(raw)
            except msgspec.DecodeError:
                findings.add(DamageKind.ENTRY_UNKNOWN, "the state of the move from the legacy layout is damaged")
        for key, value in shard.items(keys.DIRECTORY, space, keys.after(space)):
            moved.add(key[len(space) :])
            if value not in {each.value for each in Moved}:
                findings.add(
                    DamageKind.ENTRY_UNKNOWN, f"the record of the moved message {key[len(space) :].hex()} is damaged"
                )
    return state, moved


def _check_message(message: LegacyMessage, shards: Sequence[MergedReads], findings: Findings) -> None:
    """Add a violation if a message that keeps its id is in both layouts."""
    if own_id(message.id) is None:
        return
    for shard in shards:
        for key, raw in shard.items(keys.DIRECTORY, keys.QUEUE_NAMES, keys.after(keys.QUEUE_NAMES)):
            p = key[len(keys.QUEUE_NAMES) :]
            if _decode_ref(raw) == LEGACY_QUEUE and shard.get(keys.MESSAGES, p + message.id) is not None:
                what = f"message {message.id.hex()} is in the store and, not marked as moved, in the old layout"
                findings.add(DamageKind.MESSAGE_TWICE, what)
