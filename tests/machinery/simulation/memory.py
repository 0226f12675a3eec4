"""The memory store as if it lay on a disk: a crash keeps it, and a power cut undoes what was not synced."""

from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from holdfast.model.ids import IdMaker
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Change, Life
from holdfast.runtime import Runtime
from holdfast.stores.contract import Listener
from holdfast.stores.memory.directory import MemoryDirectory
from holdfast.stores.memory.journal import MemoryJournal
from holdfast.stores.memory.queue import MemoryMessage, MemoryQueue
from holdfast.stores.memory.store import MemoryStore
from holdfast.stores.memory.unit import MemoryUnits
from holdfast.stores.values import Capabilities

T = TypeVar("T")

# More claims of one message than a power cut can undo.
_JUMP = 1 << 20


class DurableUnits(MemoryUnits):
    """Steps that a power cut may undo are remembered, each with how to undo it. Every other step syncs itself and all
    before it."""

    def __init__(self, directory: MemoryDirectory, journal: MemoryJournal, ids: IdMaker) -> None:
        super().__init__(directory, journal, ids)
        self.unsynced: list[list[Callable[[], None]]] = []
        self.floor = 0

    async def run(
        self, ref: QueueRef, work: Callable[[Self], Awaitable[T]], now_ms: int, *, target: QueueRef | None = None
    ) -> T:
        events = self._journal._events
        length = len(events)
        self.unsynced.append([lambda: events.__delitem__(slice(length, None))])
        try:
            result = await super().run(ref, work, now_ms, target=target)
        except BaseException:
            self.unsynced.pop()
            raise
        if self.is_durable:
            self.unsynced.clear()
        elif len(self.unsynced[-1]) == 1:
            self.unsynced.pop()  # it changed nothing
        return result

    def version_floor(self, entry: MemoryMessage) -> int:
        return self.floor

    def apply_one(self, queue: MemoryQueue, entry: MemoryMessage, change: Change) -> None:
        before = entry.life
        super().apply_one(queue, entry, change)
        self.unsynced[-1].append(lambda: self._undo(queue, entry, before))

    def _undo(self, queue: MemoryQueue, entry: MemoryMessage, life: Life) -> None:
        if entry.envelope.id in queue.entries:
            queue.change(entry, life)
        else:
            entry.life = life
            self._directory.put(queue, entry)
        self.note_deadline(queue.row.ref, queue.next_deadline(0))


class DurableMemoryStore(MemoryStore):
    """Extensions, and claims without a ledger, are written and not synced. After a crash versions jump, as they do in
    every store that may have lost claims."""

    capabilities = Capabilities(claims_inline=True)
    units_class = DurableUnits
    _units: DurableUnits

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._directory.is_closed = False
        await super().open(listener, runtime)
        for queue in self._directory._queues.values():
            self._units.report_deadline(queue, runtime.clock.now_ms())
        if (trim_at := self._journal.next_trim_at()) is not None:
            listener.deadline(trim_at)
        if (tick_at := self.schedules._schedule_index.first_at()) is not None:
            listener.scheduled(tick_at)

    @property
    def unsynced(self) -> int:
        """Calls that a power cut would undo now."""
        return len(self._units.unsynced)

    def sync(self) -> None:
        self._units.unsynced.clear()

    def crash(self, undone: int) -> None:
        """The process is gone, and with the power the last `undone` calls that were not synced."""
        unsynced = self._units.unsynced
        for _ in range(undone):
            for undo in reversed(unsynced.pop()):
                undo()
        unsynced.clear()
        self._units.floor += _JUMP
