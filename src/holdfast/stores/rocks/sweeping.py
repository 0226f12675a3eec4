"""One sweep: everything that time has ended, up to a limit."""

from holdfast.stores.contract import Swept
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.board import Board
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.changes import Changes
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.journal import RocksJournal
from holdfast.stores.rocks.reading import Reader
from holdfast.stores.rocks.seen import SeenKeys
from holdfast.stores.rocks.upkeep import Upkeep


class Sweeping:
    def __init__(
        self,
        engine: Engine,
        board: Board,
        catalog: Catalog,
        reader: Reader,
        changes: Changes,
        seen: SeenKeys,
        journal: RocksJournal,
        upkeep: Upkeep,
    ) -> None:
        self._engine = engine
        self._board = board
        self._catalog = catalog
        self._reader = reader
        self._changes = changes
        self._seen = seen
        self._journal = journal
        self._upkeep = upkeep

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        changed = 0
        while changed < limit and (shelf := self._upkeep.pop_due(now_ms)) is not None:
            shelf.prepare()
            self._engine.begin()
            shelf.count_due(now_ms)
            changed += self._changes.end_by_time(shelf, limit - changed, now_ms)
            if shelf.row.drain_until is not None and (not shelf.counters.in_flight or shelf.row.drain_until <= now_ms):
                changed += self._changes.delete_some(self._reader, shelf, limit - changed, now_ms)
            self._engine.end()
            if self._catalog.find(shelf.row.ref) is shelf:
                self._upkeep.note(shelf, now_ms)
        self._engine.begin()
        changed += self._changes.end_by_time(None, limit - changed, now_ms)
        changed += self._changes.end_kept(limit - changed, now_ms)
        changed += self._seen.forget_old(limit - changed, now_ms)
        changed += self._journal.trim(limit - changed, now_ms)
        await self._engine.committed()
        ends = [self._upkeep.next_at(), self._seen.next_at(), self._journal.next_trim_at()]
        ends += [
            keys.parse_instant(key) for key in (self._board.ttls.peek(), self._board.kept.peek()) if key is not None
        ]
        return Swept(changed, min((end for end in ends if end is not None), default=None))
