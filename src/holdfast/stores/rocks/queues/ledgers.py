"""Claim ledgers on disk: the open claims of each consumer by number, and the highest number it has closed."""

import msgspec

from holdfast.model.message import Receipt
from holdfast.model.rules.ledgers import NONE_CLOSED
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.unit import OpenClaim

# How to change this format: an open claim is stored as a MessagePack array of `claimed_at` and the receipts, each an
# array of its fields. To add a field, append it to the outer array and let `_decode` accept both lengths.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[Receipt]]).decode


class LedgerKeys:
    """The keys of claim ledgers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_claims(self, queue: QueueState, consumer: str, number: int | None, upto: int | None) -> list[OpenClaim]:
        """Return the consumer's open claims by number: all of them, the one with `number`, or those up to `upto`."""
        self._engine.write()
        space = _name(queue, consumer)
        lower = space if number is None else space + keys.instant(number)
        upper = keys.after(lower) if upto is None else space + keys.instant(upto + 1)
        return [
            OpenClaim(keys.parse_instant(key[len(space) :]), *_decode(raw))
            for key, raw in self._engine.database.items(keys.INDEXES, lower, upper)
        ]

    def put(self, queue: QueueState, consumer: str, claim: OpenClaim) -> None:
        """Write an open claim."""
        key = _name(queue, consumer) + keys.instant(claim.number)
        self._engine.put(key, _encode((claim.claimed_at, claim.receipts)), keys.INDEXES)

    def close(self, queue: QueueState, consumer: str, numbers: list[int], closed_upto: int) -> None:
        """Delete closed claims, and write the highest number closed."""
        for number in numbers:
            self._engine.delete(_name(queue, consumer) + keys.instant(number), keys.INDEXES)
        self._engine.put(keys.CLOSED + queue.p + keys.hashed(consumer), keys.instant(closed_upto), keys.INDEXES)

    def closed_upto(self, queue: QueueState, consumer: str) -> int:
        """Return the highest number closed; `NONE_CLOSED` if there is none."""
        self._engine.write()
        raw = self._engine.database.get(keys.INDEXES, keys.CLOSED + queue.p + keys.hashed(consumer))
        return NONE_CLOSED if raw is None else keys.parse_instant(raw)


def _name(queue: QueueState, consumer: str) -> bytes:
    return keys.LEDGER + queue.p + keys.hashed(consumer)
