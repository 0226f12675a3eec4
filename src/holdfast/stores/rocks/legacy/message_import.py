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
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.rules import lifecycle
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.legacy.entries import LegacyMessage, LegacyPosition
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
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
        added = unit.add_imported(queue, [_imported(each, progress.begun_at) for each in messages], "legacy")
        held = []
        for message, entry in zip(messages, added, strict=True):
            if message.is_held(progress.begun_at) and message.lease_expires_at is not None:
                # Claim it under a lease of the same end. No one has the receipt, so it becomes ready when the lease
                # ends.
                [token] = self._dice.tokens(1)
                lease_ms = max(0, message.lease_expires_at - unit.now_ms)
                change = lifecycle.claim(entry.life, queue.row.policy, unit.now_ms, token=token, lease_ms=lease_ms)
                held.append((entry, change))
        self._store.shards[0].engine.put(_PROGRESS, _encode(progress), keys.DIRECTORY)
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


def _imported(message: LegacyMessage, begun_at: int) -> tuple[Draft, int | None, int]:
    visible_at = message.visible_at if message.is_held(begun_at) else message.ready_at()
    return draft_of(message), own_id(message.id), visible_at


def draft_of(message: LegacyMessage, *, keeps_id: bool = True) -> Draft:
    """Return the new message's draft. `keeps_id`: it keeps an id of this version's form."""
    is_own = keeps_id and own_id(message.id) is not None
    return Draft(payload=message.payload, headers={} if is_own else {LEGACY_ID: message.id.hex()})


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
