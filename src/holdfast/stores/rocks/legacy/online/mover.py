"""The background loop that moves messages from the old layout, and the end of the move."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime, yield_to_others
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.stores.rocks.legacy.entries import Oddity
from holdfast.stores.rocks.legacy.kept_keys import keep_keys
from holdfast.stores.rocks.legacy.online.legacy_source import LegacySource, Phase
from holdfast.stores.rocks.legacy.online.message_moves import THREAD, MessageMoves
from holdfast.stores.rocks.legacy.online.old_messages import OldMessages
from holdfast.stores.rocks.legacy.survey import describe_oddity
from holdfast.stores.rocks.shard import Shard

# The pauses before another attempt after a failure of the old database, and while the disk is nearly full.
_RETRY_MS, _LOW_DISK_MS = 5_000, 1_000
_LOG_EVERY_MS = 60_000
_EXAMPLES = 5

_log = logging.getLogger("holdfast")


class LegacyMover(OldMessages):
    """The move of one old database into one shard."""

    def __init__(
        self,
        directory: Path,
        shard: Shard,
        source: LegacySource,
        runtime: Runtime,
        room: DiskRoom,
        moves: MessageMoves,
        *,
        accepted: int,
        on_moved: Callable[[], Awaitable[None]],
    ) -> None:
        """`accepted` is the exact number of unreadable keys to leave out. `on_moved` is called when nothing is left to
        move."""
        super().__init__(shard, source, runtime, room, moves)
        self._directory = directory
        self._accepted = accepted
        self._on_moved = on_moved
        self._is_running = False
        # The number of keys that cannot be read, and some of them, once that is what the end of the move waits for.
        self.unreadable: int | None = None
        self.examples: list[str] = []
        # Copies of the old database that are being made: nothing is deleted from it.
        self._holds = 0
        self._is_deleting = False
        self._logged_at = self._clock.now_ms()

    # --- The background loop -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Move messages in the background from now on."""
        state = self._moves.state
        facts = {"path": str(self._directory), "moved": state.moved, "field_order": state.order, "left": self.left}
        _log.info("legacy_move_begun", extra=facts)
        self._is_running = True
        self._runtime.spawn(self._run())

    async def close(self) -> None:
        """Stop, and wait for the work in progress."""
        self._is_closed = True
        self._wake()
        while self._is_running or self._is_counting:
            await self._changed()

    async def run_to_end(self, report: Callable[[int], None]) -> None:
        """Return once nothing is left to move, or only keys that cannot be read. `report` is called with the number of
        messages moved so far. Raise `StoreUnavailable` if the old database or the store fails."""
        while not self.is_done and self.unreadable is None:
            self._check()
            report(self._moves.state.moved)
            await self._changed()

    async def _run(self) -> None:
        try:
            while not (self._is_closed or self.is_done or self.unreadable is not None):
                try:
                    await self._run_once()
                except StoreUnavailable as error:
                    if self._shard.engine.failure is not None:
                        return  # the store has stopped; the next opening begins again
                    await self._pause_after(error.message)
                except Exception as error:  # RocksDB's binding raises nothing more precise
                    await self._pause_after(str(error))
                else:
                    self.failure = None
        finally:
            self._is_running = False
            self._wake()

    async def _pause_after(self, cause: str) -> None:
        if self.failure is None:
            _log.error("legacy_move_failed", extra={"path": str(self._directory), "cause": cause})
        self.failure = cause
        self._wake()
        await self._pause(_RETRY_MS)

    async def _run_once(self) -> None:
        """Carry out one step of the move, and delete what earlier steps have moved."""
        if not self._has_leases:
            # Read on another thread: from here on the ends of leases are in memory.
            await self._runtime.offload_long(self._source.leases, thread=THREAD)
            self._has_leases = True
            self._wake()
        if self._moves.is_through:
            await self._finish()
            return
        now_ms = self._clock.now_ms()
        if self._source.phase is not Phase.CLAIMED and self._room.refusal(now_ms) is not None:
            # Claims still move what they need, and deletions free space.
            await self._delete()
            await self._pause(_LOW_DISK_MS, lambda: self._moves.waiting > 0)
            return
        if self._shard.checkpoints.is_behind:
            await self._shard.checkpoints.wait_for_room()
        await self._move(self._take_step, now_ms)
        if self._moves.has_batch or self._source.phase is Phase.DONE:
            await self._delete()
        self._log_progress()
        await yield_to_others(self._runtime)

    async def _delete(self) -> None:
        while self._holds and not self._is_closed:
            await self._changed()
        if self._is_closed:
            return
        self._is_deleting = True
        try:
            await self._moves.delete_once()
        finally:
            self._is_deleting = False
            self._wake()

    async def _finish(self) -> None:
        """End the move: nothing is left in the old database but keys that are no messages."""
        while (self._holds or self._is_counting) and not self._is_closed:
            await self._changed()
        if self._is_closed:
            return
        self._is_deleting = True
        try:
            await self._end()
        finally:
            self._is_deleting = False
            self._wake()

    async def _end(self) -> None:
        left = await self._runtime.offload_long(self._source.left_over, thread=THREAD)
        if left is None:
            return  # a message was missed, and the phases begin again
        unreadable = sum(each.is_unreadable for each in left)
        # None are left if a crash has interrupted an earlier attempt after they were kept in the file.
        if unreadable not in (0, self._accepted):
            self._refuse_unreadable(left, unreadable)
            return
        await self._runtime.offload_long(lambda: self._keep(left), thread=THREAD)
        await self._moves.forget()
        while self._is_counting:
            await self._changed()
        self.is_done = True
        await self._on_moved()
        moved = self._moves.state.moved
        _log.info("legacy_move_ended", extra={"path": str(self._directory), "moved": moved, "kept": len(left)})

    def _keep(self, left: list[Oddity]) -> None:
        """Write what is left to a file, and only then delete it. Runs on another thread."""
        keep_keys(self._directory, left)
        self._source.delete([each.key for each in left])

    def _refuse_unreadable(self, left: list[Oddity], unreadable: int) -> None:
        self.unreadable = unreadable
        self.examples = [describe_oddity(each) for each in left if each.is_unreadable][:_EXAMPLES]
        _log.warning(
            "legacy_keys_unreadable",
            extra={
                "path": str(self._directory),
                "keys": unreadable,
                "advice": f"holdfast db migrate {self._directory} --accept-unreadable {unreadable}",
            },
        )

    def _log_progress(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms - self._logged_at >= _LOG_EVERY_MS:
            self._logged_at = now_ms
            facts = {"path": str(self._directory), "moved": self._moves.state.moved, "left": self.left}
            _log.info("legacy_move_progress", extra=facts)

    async def _pause(self, pause_ms: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait, at most until this is closed, or until the condition holds after a change."""
        ends_at = self._clock.now_ms() + pause_ms
        while not self._is_closed and not is_over() and self._clock.now_ms() < ends_at:
            self._timer = self._runtime.call_at(ends_at, self._wake)
            await self._changed()

    # --- Copies of the old database ----------------------------------------------------------------------------

    async def hold(self) -> None:
        """Delete nothing from the old database until `release`. Return once nothing is being deleted."""
        self._holds += 1
        while self._is_deleting:
            await self._changed()

    def release(self) -> None:
        """Undo one `hold`."""
        self._holds -= 1
        self._wake()
