"""Verdicts and state documents: what the holder of a lease says of its message."""

from collections.abc import Callable

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.answers import Result
from holdfast.model.message import Receipt
from holdfast.model.requests import Settle, StateChange, Verdict
from holdfast.model.state_documents import lease_lost, saved
from holdfast.model.verdicts import judge
from holdfast.stores.answers import settled, stale
from holdfast.stores.rocks.changes import Changes
from holdfast.stores.rocks.engine import Engine
from holdfast.stores.rocks.entries import Entries
from holdfast.stores.rocks.shelf import Shelf
from holdfast.stores.rocks.upkeep import Upkeep


class Settling:
    def __init__(self, engine: Engine, entries: Entries, changes: Changes, upkeep: Upkeep, dice: Dice) -> None:
        self._engine = engine
        self._entries = entries
        self._changes = changes
        self._upkeep = upkeep
        self._dice = dice

    async def settle(
        self, shelf: Shelf, verdicts: list[Verdict], now_ms: int, also: Callable[[], None] | None = None
    ) -> list[Result]:
        """`also` is written in the same step."""
        shelf.prepare()
        self._entries.warm(shelf, [verdict.receipt.id for verdict in verdicts])
        self._engine.begin()
        shelf.count_due(now_ms)
        results = [self._settle_one(shelf, verdict, now_ms) for verdict in verdicts]
        if also is not None:
            also()
        extends = [verdict.settle is Settle.EXTEND for verdict in verdicts]
        # The last lease of a queue being deleted may be settled, or one shortened; else deadlines only moved away.
        has_deadline = shelf.row.drain_until is not None or any(extends)
        if also is None and all(extends):
            self._engine.written()
            if has_deadline:
                self._upkeep.note(shelf, now_ms)
        else:
            if has_deadline:
                self._upkeep.note_after_commit(shelf, now_ms)
            await self._engine.committed()
        return results

    def _settle_one(self, shelf: Shelf, verdict: Verdict, now_ms: int) -> Result:
        entry = self._entries.get(shelf, verdict.receipt.id)
        if entry is None or not lifecycle.holds(entry.life, verdict.receipt, now_ms):
            return stale(verdict.receipt.id, None if entry is None else entry.envelope)
        change = judge(entry.life, entry.envelope, verdict, shelf.row.policy, now_ms, self._dice.roll)
        self._changes.apply(shelf, entry, change, now_ms)
        return settled(entry.envelope, change.life)

    async def save_state(self, shelf: Shelf | None, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        entry = None if shelf is None else self._entries.get(shelf, receipt.id)
        if shelf is None or entry is None or not lifecycle.holds(entry.life, receipt, now_ms):
            raise lease_lost(receipt.id)
        state = saved(self._entries.state(shelf, entry), change)
        self._engine.begin()
        self._entries.put_state(shelf, entry, state)
        await self._engine.committed()
        return state.etag
