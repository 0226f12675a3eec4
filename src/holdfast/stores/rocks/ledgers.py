"""Claim ledgers: a consumer's numbered claims, to be read again by number."""

import msgspec

from holdfast.model.ledgers import NONE_CLOSED, check_open, closed_after
from holdfast.model.message import Receipt
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.shelf import Shelf

_Claim = tuple[int, list[Receipt]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Claim).decode


class Ledgers:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._families = engine.database.families

    def receipts(self, shelf: Shelf, consumer: str, number: int) -> list[Receipt] | None:
        """Those of an open claim; None if the number is new, `InvalidArgument` if it is closed."""
        self._engine.write()
        check_open(consumer, number, self._closed_upto(shelf, consumer))
        raw = self._engine.database.get(keys.INDEXES, _name(shelf, consumer) + keys.instant(number))
        return None if raw is None else _decode(raw)[1]

    def open_claims(
        self, shelf: Shelf, consumer: str, number: int | None = None
    ) -> list[tuple[int, int, list[Receipt]]]:
        """Number, time and receipts of each, by number; or of one."""
        self._engine.write()
        space = _name(shelf, consumer)
        first = space if number is None else space + keys.instant(number)
        return [
            (keys.parse_instant(key[len(space) :]), *_decode(raw))
            for key, raw in self._engine.database.items(keys.INDEXES, first, keys.after(first))
        ]

    def put(self, shelf: Shelf, consumer: str, number: int, now_ms: int, receipts: list[Receipt]) -> None:
        key = _name(shelf, consumer) + keys.instant(number)
        self._engine.put(key, _encode((now_ms, receipts)), self._families.ix)

    def close(self, shelf: Shelf, consumer: str, upto: int, numbers: list[int], closed_upto: int) -> None:
        for number in numbers:
            self._engine.delete(_name(shelf, consumer) + keys.instant(number), self._families.ix)
        name = keys.CLOSED + shelf.p + keys.hashed(consumer)
        self._engine.put(name, keys.instant(closed_after(closed_upto, upto)), self._families.ix)

    def closed_upto(self, shelf: Shelf, consumer: str) -> int:
        self._engine.write()
        return self._closed_upto(shelf, consumer)

    def _closed_upto(self, shelf: Shelf, consumer: str) -> int:
        raw = self._engine.database.get(keys.INDEXES, keys.CLOSED + shelf.p + keys.hashed(consumer))
        return NONE_CLOSED if raw is None else keys.parse_instant(raw)


def _name(shelf: Shelf, consumer: str) -> bytes:
    return keys.LEDGER + shelf.p + keys.hashed(consumer)
