"""The memory store as if it lay on a disk: a crash keeps it, and a power cut undoes what was not synced."""

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.dice import Dice
from holdfast.model.answers import Result
from holdfast.model.events import Event
from holdfast.model.lifecycle import Change, Life
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Settle, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import Capabilities, Claims, Listener
from holdfast.stores.memory.shelf import Entry, Shelf
from holdfast.stores.memory.store import MemoryStore

# More claims of one message than a power cut can undo.
_JUMP = 1 << 20


class DurableMemoryStore(MemoryStore):
    """Extensions, and claims without a ledger, are written and not synced. Every other change syncs itself and all
    before it.

    What is not synced is remembered call by call, with how to undo it. After a crash versions jump, as they do in every
    store that may have lost claims.
    """

    capabilities = Capabilities(claims_inline=True)

    def __init__(self, dice: Dice, journal_retention_ms: int) -> None:
        super().__init__(dice, journal_retention_ms)
        self._unsynced: list[list[Callable[[], None]]] = []
        self._version_floor = 0

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._directory.is_closed = False
        await super().open(listener, runtime)
        for shelf in self._directory._shelves.values():
            self._tell_deadline(shelf, runtime.clock.now_ms())
        if (trim_at := self._journal.next_trim_at()) is not None:
            listener.deadline(trim_at)
        if (tick_at := self.schedules._timetable.first_at()) is not None:
            listener.scheduled(tick_at)

    @property
    def unsynced(self) -> int:
        """Calls that a power cut would undo now."""
        return len(self._unsynced)

    def sync(self) -> None:
        self._unsynced.clear()

    def crash(self, undone: int) -> None:
        """The process is gone, and with the power the last `undone` calls that were not synced."""
        for _ in range(undone):
            for undo in reversed(self._unsynced.pop()):
                undo()
        self._unsynced.clear()
        self._version_floor += _JUMP

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        undos = self._begin()
        claims = await super().claim(ref, asks, now_ms)
        if asks[0].ledger is not None:
            self.sync()
        elif len(undos) == 1:
            self._unsynced.pop()  # it changed nothing
        return claims

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        self._begin()
        results = await super().settle(ref, verdicts, now_ms)
        if not all(verdict.settle is Settle.EXTEND for verdict in verdicts):
            self.sync()
        return results

    def _begin(self) -> list[Callable[[], None]]:
        events = self._journal._events
        length = len(events)
        undos: list[Callable[[], None]] = [lambda: events.__delitem__(slice(length, None))]
        self._unsynced.append(undos)
        return undos

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        if change.event is Event.CLAIMED and change.life is not None:
            version = max(change.life.version, self._version_floor + 1)
            change = change._replace(life=replace(change.life, version=version))
        before = entry.life
        super()._apply(shelf, entry, change, now_ms)
        if self._unsynced:
            self._unsynced[-1].append(lambda: self._undo(shelf, entry, before))

    def _undo(self, shelf: Shelf, entry: Entry, life: Life) -> None:
        if entry.envelope.id in shelf.entries:
            shelf.change(entry, life)
        else:
            entry.life = life
            self._directory.put(shelf, entry)
        self._note_deadline(shelf.row.ref, shelf.next_deadline(0))
