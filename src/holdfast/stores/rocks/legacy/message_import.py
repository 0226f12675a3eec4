"""The import of messages from a legacy database into a store. Leases that have not ended are kept.

Each step atomically writes some messages and the position up to which the old database was read. If the process is
killed, the next run continues at that position, and no message is imported twice.

How to change this format: `MigrationProgress` is stored as a MessagePack array. Add a field at the end, with the
default that a run by an older version implies.
"""

from collections.abc import Sequence

import msgspec

from holdfast.dice import Dice
from holdfast.model import ids
from holdfast.model.errors import InvalidArgument
from holdfast.model.events import Event
from holdfast.model.message import Draft, make_envelope
from holdfast.model.names import QueueRef
from holdfast.model.rules import lifecycle
from holdfast.model.rules.lifecycle import Life
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.legacy.entries import LegacyMessage, LegacyPosition
from holdfast.stores.rocks.payloads.pieces import store_large_payload
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.store import RocksStore

# The queue that gets all messages of a legacy database.
LEGACY_QUEUE = QueueRef()
# The header with a message's old id in hexadecimal. Only messages whose id could not be kept have it.
LEGACY_ID = "legacy-id"

_PROGRESS = keys.META + b"legacy migration"


class MigrationProgress(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The progress of an unfinished migration. A message whose lease ends after `begun_at` is imported in flight."""

    begun_at: int
    # The last key that was read; None: none yet.
    position: LegacyPosition | None = None
    # The numbers of messages imported and of keys read.
    messages: int = 0
    keys: int = 0
    is_copied: bool = False
    # The order of the fields of the old values. Older versions read only the default order, and did not store it.
    order: str = "contents, visibility_ts_index_key, id"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(MigrationProgress).decode


class LegacyImport:
    """The writer of the new store."""

    def __init__(self, store: RocksStore, dice: Dice) -> None:
        self._store = store
        self._dice = dice

    def progress(self) -> MigrationProgress | None:
        """Return the stored progress, or None if no migration has begun."""
        raw = self._store.shards[0].engine.database.get(keys.DIRECTORY, _PROGRESS)
        return None if raw is None else _decode(raw)

    async def put(self, messages: Sequence[LegacyMessage], progress: MigrationProgress, now_ms: int) -> None:
        """Import messages, and store the progress, in one atomic step.

        Returns once the step is written. If a power cut undoes it, it undoes the progress too, and the step is
        repeated.
        """
        self._store._disk_room.check(now_ms)
        await self._store.shards[0].units.run(LEGACY_QUEUE, lambda unit: self._put(unit, messages, progress), now_ms)

    async def _put(self, unit: RocksUnits, messages: Sequence[LegacyMessage], progress: MigrationProgress) -> None:
        queue = await unit.find(LEGACY_QUEUE) or await unit.create(LEGACY_QUEUE)
        engine, facts = self._store.shards[0].engine, self._store.shards[0].facts
        # From here on nothing may be read: a read would first write the open commit, with half of this change.
        engine.is_mid_change = True
        own = [own_id(message.id) for message in messages]
        facts.skip_ids(max((id for id in own if id is not None), default=0))
        fresh = iter(facts.take_ids(own.count(None), unit.now_ms))
        held = []
        for message, id in zip(messages, own, strict=True):
            is_held = message.is_held(progress.begun_at)
            entry = self._put_one(queue, message, id, next(fresh) if id is None else id, is_held, unit.now_ms)
            if is_held and message.lease_expires_at is not None:
                # Claim it under a lease of the same end. No one has the receipt, so it becomes ready when the lease
                # ends.
                [token] = self._dice.tokens(1)
                lease_ms = max(0, message.lease_expires_at - unit.now_ms)
                change = lifecycle.claim(entry.life, queue.row.policy, unit.now_ms, token=token, lease_ms=lease_ms)
                held.append((entry, change))
        engine.put(_PROGRESS, _encode(progress), keys.DIRECTORY)
        engine.is_mid_change = False
        unit.apply(queue, held)

    async def note(self, progress: MigrationProgress | None) -> None:
        """Store the progress alone, or delete it with None at the end of the migration."""
        engine = self._store.shards[0].engine
        engine.begin()
        if progress is None:
            engine.delete(_PROGRESS, keys.DIRECTORY)
        else:
            engine.put(_PROGRESS, _encode(progress), keys.DIRECTORY)
        await engine.committed()

    def _put_one(
        self, queue: QueueState, message: LegacyMessage, own_id: int | None, id: int, is_held: bool, now_ms: int
    ) -> StoredMessage:
        store = self._store
        headers = {LEGACY_ID: message.id.hex()} if own_id is None else {}
        draft = Draft(payload=message.payload, headers=headers)
        envelope = store_large_payload(store.shards[0].engine, make_envelope(draft, id, now_ms))
        visible_at = message.visible_at if is_held else message.ready_at()
        entry = StoredMessage(queue.p, envelope, Life(visible_at=visible_at), keys.id_bytes(id), draft.bytes)
        queue.put(entry)
        store.shards[0].entries.remember(entry)
        store.shards[0].journal.append(queue, entry, Event.ENQUEUED, now_ms, reason="legacy")
        return entry


def own_id(raw: bytes) -> int | None:
    """Return the id as a snowflake if it is a valid id of this format; else None.

    Another 16-byte id must not be kept, because a wrong time and node number would be read from it.
    """
    if len(raw) != keys.ID_SIZE:
        return None
    try:
        return ids.from_bytes(raw)
    except InvalidArgument:
        return None


def old_id(id: int, headers: dict[str, str]) -> bytes:
    """Return the id that a message had in the legacy database."""
    legacy = headers.get(LEGACY_ID)
    return ids.to_bytes(id) if legacy is None else bytes.fromhex(legacy)
