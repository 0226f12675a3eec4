"""Messages of a legacy database put into a store, each with what it has of a life already.

A step is one atomic write: the messages, and how far the reading was when they were read. Killed at any point, the next
run goes on from there, and no message comes twice.
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
from holdfast.stores.rocks.legacy.legacy_database import LegacyMessage, LegacyPosition
from holdfast.stores.rocks.payloads.pieces import in_pieces
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.store import RocksStore

# All that was in a legacy database is in this queue.
LEGACY_QUEUE = QueueRef()
# The id that a message had, in hexadecimal, where it could not be kept.
LEGACY_ID = "legacy-id"

_PROGRESS = keys.META + b"legacy migration"


class MigrationProgress(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How far a migration is. Leases that end after `begun_at` hold their messages. `order`: of the values' fields."""

    begun_at: int
    place: LegacyPosition | None = None
    messages: int = 0
    keys: int = 0
    is_copied: bool = False
    # Older versions read this order alone, and did not note it.
    order: str = "contents, visibility_ts_index_key, id"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(MigrationProgress).decode


class LegacyImport:
    def __init__(self, store: RocksStore, dice: Dice) -> None:
        self._store = store
        self._dice = dice

    def progress(self) -> MigrationProgress | None:
        raw = self._store.shards[0].engine.database.get(keys.DIRECTORY, _PROGRESS)
        return None if raw is None else _decode(raw)

    async def put(self, messages: Sequence[LegacyMessage], progress: MigrationProgress, now_ms: int) -> None:
        """Answers when it is written: what a power cut takes, it takes with the progress, and it is done again."""
        self._store._room.check(now_ms)
        await self._store.shards[0].units.run(LEGACY_QUEUE, lambda unit: self._put(unit, messages, progress), now_ms)

    async def _put(self, unit: RocksUnits, messages: Sequence[LegacyMessage], progress: MigrationProgress) -> None:
        queue = await unit.find(LEGACY_QUEUE) or await unit.create(LEGACY_QUEUE)
        engine, facts = self._store.shards[0].engine, self._store.shards[0].facts
        engine.is_mid_change = True  # nothing may be read from here on
        own = [own_id(message.id) for message in messages]
        facts.skip_ids(max((id for id in own if id is not None), default=0))
        fresh = iter(facts.take_ids(own.count(None), unit.now_ms))
        held = []
        for message, id in zip(messages, own, strict=True):
            is_held = message.is_held(progress.begun_at)
            entry = self._put_one(queue, message, id, next(fresh) if id is None else id, is_held, unit.now_ms)
            if is_held and message.lease_expires_at is not None:
                # Nobody has a receipt for it: it becomes ready when the lease it had ends.
                [token] = self._dice.tokens(1)
                lease_ms = max(0, message.lease_expires_at - unit.now_ms)
                change = lifecycle.claim(entry.life, queue.row.policy, unit.now_ms, token=token, lease_ms=lease_ms)
                held.append((entry, change))
        engine.put(_PROGRESS, _encode(progress), keys.DIRECTORY)
        engine.is_mid_change = False
        unit.apply(queue, held)

    async def note(self, progress: MigrationProgress | None) -> None:
        """The progress alone; None: it is over, and forgotten."""
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
        envelope = in_pieces(store.shards[0].engine, make_envelope(draft, id, now_ms))
        visible_at = message.visible_at if is_held else message.ready_at()
        entry = StoredMessage(queue.p, envelope, Life(visible_at=visible_at), keys.id_bytes(id), draft.bytes)
        queue.put(entry)
        store.shards[0].entries.remember(entry)
        store.shards[0].journal.append(queue, entry, Event.ENQUEUED, now_ms, reason="legacy")
        return entry


def own_id(raw: bytes) -> int | None:
    """An id of ours is kept. A foreign one would be taken for a time and a node that it is not."""
    if len(raw) != keys.ID_SIZE:
        return None
    try:
        return ids.from_bytes(raw)
    except InvalidArgument:
        return None


def old_id(id: int, headers: dict[str, str]) -> bytes:
    """The id that a message had in the legacy database."""
    legacy = headers.get(LEGACY_ID)
    return ids.to_bytes(id) if legacy is None else bytes.fromhex(legacy)
