"""Moves of messages to a shard of another store process, in commits of one shard each.

    source   + x, - m …     the messages leave their queue, and become a transfer
    target   + m …, a       the messages join their queue; `a` has the number of the last transfer from that shard
    source   - x            the transfer is over

Each commit is on disk before the next one begins, and a transfer whose number is not above the one in `a` has arrived
before. So after a crash every message is in exactly one of the source queue, the transfer and the target queue. An
unfinished transfer is carried out again until it is over. A shard has at most one transfer at a time.

The letters are the spaces of `keys.py`. A payload in pieces is copied before the messages arrive, under its own blob
id. The source keeps its pieces, as those of an upload (`u`), until the transfer is over.

How to change this format: append a field with a default to `Transfer`, and raise the format of the store
(`recovery/marker.py`).
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import to_bytes
from holdfast.model.message import Envelope, Pieces
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, StateDocument, states_of
from holdfast.model.rules.verdicts import apply_verb
from holdfast.stores.formats.message_record import decode_life, decode_message, encode_life, encode_message
from holdfast.stores.logic.queues import require
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.payloads.staging import RocksStaging
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.shard_parts import ShardParts
from holdfast.stores.values import AlterStep

# Maximum number of bytes of payloads in one transfer. A single larger message has a transfer of its own.
TRANSFER_BYTES = 16 << 20


class TransferredMessage(msgspec.Struct, frozen=True, array_like=True):
    """One message of a transfer: its id, its records, and its state document, if it has one."""

    id: int
    message: bytes
    life: bytes
    state: StateDocument | None = None


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """Messages between two queues. `shard` is the source's, `target_p` the prefix of the target queue."""

    number: int
    shard: int
    source: QueueRef
    target: QueueRef
    target_p: bytes
    messages: list[TransferredMessage]
    bytes: int
    # Its number among the moves that the coordinator of a divided store knows of (`portions/coordinator.py`).
    announced: int = 0

    def pieces(self) -> list[Pieces]:
        """Return the payloads in pieces of the messages."""
        envelopes = [_envelope_of(each) for each in self.messages]
        return [each.pieces for each in envelopes if each.pieces is not None]


encode_transfer = msgspec.msgpack.Encoder().encode
_decode_transfer = msgspec.msgpack.Decoder(Transfer).decode


def decode_transfer(raw: bytes) -> Transfer:
    """Return the transfer with this record. Raise `StoreUnavailable` if it is damaged."""
    try:
        return _decode_transfer(raw)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"a move between two shards is damaged ({error}): restore a backup") from None


class RoomExceeded(Exception):
    """A transfer would have more messages or bytes than its caller has room for."""

    def __init__(self, messages: int, size: int, largest: int) -> None:
        super().__init__(messages, size, largest)
        self.messages = messages
        self.size = size
        self.largest = largest


class ShardTransfers:
    """The transfers from and to the queues of one shard."""

    def __init__(self, parts: ShardParts, units: RocksUnits, staging: RocksStaging) -> None:
        self._engine = parts.engine
        self._catalog = parts.catalog
        self._facts = parts.facts
        self._units = units
        self._staging = staging

    def load(self) -> None:
        """Keep the pieces of unfinished transfers, which look like those of unfinished uploads."""
        if (transfer := self.unfinished()) is not None:
            self._staging.keep([pieces.blob_id for pieces in transfer.pieces()])

    # --- The source ----------------------------------------------------------------------------------------------

    def unfinished(self) -> Transfer | None:
        """Return the transfer from this shard that is not over."""
        self._engine.write()
        space = keys.TRANSFERS
        for _, raw in self._engine.database.items(keys.DIRECTORY, space, keys.after(space)):
            return decode_transfer(raw)
        return None

    async def depart(
        self,
        ref: QueueRef,
        verb: Move,
        which: Filter,
        after: int | None,
        limit: int,
        now_ms: int,
        *,
        target_p: bytes,
        room: tuple[int, int],
        largest: int,
        announced: int,
        left: Callable[[int, int], None],
    ) -> tuple[AlterStep, Transfer | None]:
        """Take up to `limit` matching messages out of a queue, as a transfer that is on disk.

        `left` is called with their number and size in the step that takes them out. Return no transfer if there are
        none. Raise `RoomExceeded` if they are more than `room`, in messages and bytes, or one has more than `largest`
        bytes, and `StoreUnavailable` if an earlier transfer from this shard is not over.
        """

        async def work(unit: RocksUnits) -> tuple[AlterStep, Transfer | None]:
            queue = await require(unit, ref)
            entries, next_after = await unit.matching(queue, states_of(verb), which, after, limit)
            fitting = _fitting(entries)
            if fitting < len(entries):
                entries, next_after = entries[:fitting], entries[fitting - 1].envelope.id
            if not entries:
                return AlterStep(0, 0, next_after), None
            size = sum(entry.bytes for entry in entries)
            of_largest = max(entry.bytes for entry in entries)
            if len(entries) > room[0] or size > room[1] or of_largest > largest:
                raise RoomExceeded(len(entries), size, of_largest)
            default_ttl_ms = unit.default_ttl_ms(queue)
            changes = [(each, apply_verb(each.life, each.envelope, verb, default_ttl_ms, now_ms)) for each in entries]
            states = await unit.states(queue, entries)
            [number] = self._facts.take_ids(1, now_ms)
            messages = [
                _transferred(entry, state, unit.version_floor(entry))
                for entry, state in zip(entries, states, strict=True)
            ]
            transfer = Transfer(number, self._engine.shard, ref, verb.to, target_p, messages, size, announced)
            unit.depart(queue, changes, f"to {verb.to}", keys.TRANSFERS + keys.instant(number), transfer)
            left(len(entries), size)
            unit.notify_ready(queue)
            return AlterStep(len(entries), len(entries), next_after), transfer

        if self.unfinished() is not None:
            raise StoreUnavailable(
                f"an earlier move from shard {self._engine.shard} has not arrived in the other store process yet: try "
                "again"
            )
        step, transfer = await self._units.run(ref, work, now_ms)
        if transfer is not None:
            await self._engine.synced()
        return step, transfer

    async def finish(self, transfer: Transfer) -> None:
        """Forget a transfer whose messages have arrived."""
        self._engine.begin()
        self._engine.delete(keys.TRANSFERS + keys.instant(transfer.number), keys.DIRECTORY)
        await self._engine.committed()
        for pieces in transfer.pieces():
            self._staging.abandon_blob(pieces.blob_id)

    # --- The target ----------------------------------------------------------------------------------------------

    def has_arrived(self, transfer: Transfer) -> bool:
        """Return whether the messages of a transfer have arrived before."""
        self._engine.write()
        raw = self._engine.database.get(keys.DIRECTORY, _arrival_key(transfer.shard))
        return raw is not None and keys.parse_instant(raw) >= transfer.number

    async def arrive(
        self, transfer: Transfer, now_ms: int, came: Callable[[int, int], None] = lambda messages, size: None
    ) -> None:
        """Add the messages of a transfer to their queue, and return once they are on disk.

        `came` is called with their number and size in the step that adds them. Their pieces must have been copied. Do
        nothing if they have arrived before. If the queue has been deleted since, they are dropped with it.
        """

        async def work(unit: RocksUnits) -> None:
            if self.has_arrived(transfer):
                return
            queue = self._catalog.find_by_prefix(transfer.target_p)
            if queue is not None:
                queue.begin(now_ms)
            entries, states = [], []
            for message in transfer.messages:
                entries.append(_arrived(transfer.target_p, message))
                states.append(message.state)
            self._facts.skip_ids(max((entry.envelope.id for entry in entries), default=0))
            key, number = _arrival_key(transfer.shard), keys.instant(transfer.number)
            unit.arrive(queue, list(zip(entries, states, strict=True)), f"from {transfer.source}", key, number)
            if queue is not None:
                came(len(entries), sum(entry.bytes for entry in entries))
                unit.notify_ready(queue)

        await self._units.run(transfer.target, work, now_ms)
        self._staging.abandon_copies(transfer.pieces())
        # With the durability "os" too: the source forgets the transfer next.
        await self._engine.synced()


def _arrival_key(shard: int) -> bytes:
    return keys.ARRIVALS + shard.to_bytes(4, "big")


def _fitting(entries: Sequence[StoredMessage]) -> int:
    """Return how many of the messages fit into one transfer."""
    size = 0
    for number, entry in enumerate(entries):
        size += entry.bytes
        if number and size > TRANSFER_BYTES:
            return number
    return len(entries)


def _transferred(entry: StoredMessage, state: StateDocument, floor: int) -> TransferredMessage:
    # The shard that the message goes to may have another floor. Claims that this shard may have lost must stay below
    # the version of its next claim.
    life = replace(entry.life, version=max(entry.life.version, floor))
    return TransferredMessage(
        entry.envelope.id,
        encode_message(entry.envelope, entry.life),
        encode_life(life, has_state=entry.has_state),
        state if entry.has_state else None,
    )


def _envelope_of(message: TransferredMessage) -> Envelope:
    return decode_message(message.id, message.message).envelope


def _arrived(p: bytes, message: TransferredMessage) -> StoredMessage:
    envelope = _envelope_of(message)
    has_state, life = decode_life(message.life)
    return StoredMessage(p, envelope, life, to_bytes(message.id), envelope.bytes, has_state=has_state)
