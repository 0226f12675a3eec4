"""What operators do to the messages of a queue: cancel, redrive, move, reprioritise; in steps."""

from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, Redrive, StateDocument, Verb, states_of
from holdfast.model.verdicts import alter
from holdfast.stores.answers import edited
from holdfast.stores.contract import AlterStep
from holdfast.stores.rocks.board import Board
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.changes import Changes
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.entries import Entries
from holdfast.stores.rocks.reading import Reader
from holdfast.stores.rocks.shelf import Entry, Shelf
from holdfast.stores.rocks.upkeep import Upkeep


class Altering:
    def __init__(
        self,
        engine: Engine,
        board: Board,
        catalog: Catalog,
        entries: Entries,
        reader: Reader,
        changes: Changes,
        upkeep: Upkeep,
    ) -> None:
        self._engine = engine
        self._board = board
        self._catalog = catalog
        self._entries = entries
        self._reader = reader
        self._changes = changes
        self._upkeep = upkeep

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        shelf = self._catalog.require(ref)
        target = self._catalog.require_open(verb.to) if isinstance(verb, Move) else shelf
        meant = self._reader.matching(shelf, states_of(verb), which, after, limit, now_ms)
        if target.row.tenant_id != shelf.row.tenant_id:
            self._catalog.check_quotas(target.row.ref.tenant, [entry.bytes for entry in meant])
        if isinstance(verb, Redrive) and verb.edit is not None and meant:
            self._catalog.check_edit(ref.tenant, meant[0].bytes, edited(meant[0].envelope, verb.edit).bytes)
        for each in {shelf.p: shelf, target.p: target}.values():
            groups = [entry.envelope.group for entry in meant if entry.envelope.group is not None]
            each.prepare(groups, changes=len(meant))
        states = [self._entries.state(shelf, entry) if isinstance(verb, Move) else StateDocument() for entry in meant]
        self._engine.begin()
        shelf.count_due(now_ms)
        target.count_due(now_ms)
        self._board.tell_after_commit(shelf)  # what is removed may have freed a group
        self._engine.is_mid_change = True  # the step is atomic: everything was read before
        for entry, state in zip(meant, states, strict=True):
            self._alter_one(shelf, target, entry, state, verb, now_ms)
        self._engine.is_mid_change = False
        self._upkeep.note_after_commit(shelf, now_ms)
        await self._engine.committed()
        return AlterStep(len(meant), len(meant), meant[-1].envelope.id if len(meant) == limit else None)

    def _alter_one(
        self, shelf: Shelf, target: Shelf, entry: Entry, state: StateDocument, verb: Verb, now_ms: int
    ) -> None:
        if isinstance(verb, Redrive) and verb.edit is not None:
            self._entries.forget(entry)
            shelf.edit(entry, edited(entry.envelope, verb.edit))
        change = alter(entry.life, entry.envelope, verb, self._catalog.default_ttl_ms(shelf), now_ms)
        if isinstance(verb, Move):
            self._changes.move(shelf, target, entry, state, change, now_ms)
        else:
            self._changes.apply(shelf, entry, change, now_ms)
