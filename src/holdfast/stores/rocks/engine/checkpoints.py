"""Checkpoints in the background: what is only in the log and in memory is brought to rest in RocksDB.

    freeze   the changes so far are set aside; new ones gather above them
    sync     the log is on disk up to there, so RocksDB never has what the log may lose
    slices   RocksDB gets the changes in small parts, with turns for everybody else in between
    flush    RocksDB is on disk
    release  segments of the log that nothing needs any more are used again

A crash at any point leaves the log, which has everything since the last checkpoint that was flushed.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from holdfast.clock import rest_s, steady_s
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.engine.layers import Layer
from holdfast.stores.rocks.log.commit_log import LogPosition

CHECKPOINT_BYTES = 64 << 20
# Written to the log between two looks, at most.
_CHECK_BYTES = 64 << 10

_MAX_REST_S = 0.002

_log = logging.getLogger("holdfast")


class Checkpoints:
    """Writes a checkpoint whenever enough has gathered, one at a time."""

    def __init__(self, engine: Engine, runtime: Runtime, checkpoint_bytes: int) -> None:
        self._engine = engine
        self._database = engine.database
        self._runtime = runtime
        self._checkpoint_bytes = checkpoint_bytes
        # How much must have been written to the log before it is worth a look whether something is due.
        self._check_again_at_bytes = 0
        self._is_running = False
        self.written = 0
        self._is_making_spare = False
        # There was no room for the next segment: it is tried again after the next checkpoint, which frees some.
        self._has_no_spare = False
        self._is_closed = False
        # Callers that wait for the end of the work under way.
        self._waiting: list[Ticket[None]] = []

    # --- When --------------------------------------------------------------------------------------------------

    def start_due(self) -> None:
        """After each write: begin what is due, in the background."""
        log = self._database.log
        if log.bytes_written < self._check_again_at_bytes:
            return
        self._check_again_at_bytes = log.bytes_written + min(_CHECK_BYTES, self._checkpoint_bytes // 16)
        if self._is_closed:
            return
        if self._database.unwritten_bytes >= self._checkpoint_bytes and not self._is_running:
            self._is_running = True
            self._runtime.spawn(self._run())
        if log.needs_spare and not (self._is_making_spare or self._has_no_spare):
            self._is_making_spare = True
            self._runtime.spawn(self._make_spare())

    @property
    def is_behind(self) -> bool:
        """Return whether so much has gathered while a checkpoint is being written that enqueues have to wait."""
        return self._is_running and self._database.unwritten_bytes >= self._checkpoint_bytes

    async def wait_for_room(self) -> None:
        """Return once there is room in memory again."""
        while self.is_behind:
            await self._wait_until_finished()
            self._engine.check()

    async def _wait_until_finished(self) -> None:
        ticket = self._runtime.ticket()
        self._waiting.append(ticket)
        await ticket

    # --- One checkpoint ----------------------------------------------------------------------------------------

    async def run_once(self) -> None:
        """Bring every call that has returned to rest in RocksDB, flushed."""
        await self._begin()
        await self._run()
        self._engine.check()

    async def _begin(self) -> None:
        while self._is_running:
            await self._wait_until_finished()
        self._engine.check()
        self._is_running = True

    def _end(self) -> None:
        self._is_running = self._has_no_spare = False
        self._wake_waiting()

    async def _run(self) -> None:
        try:
            await self._write()
        except StoreUnavailable:
            pass  # the engine has stopped, and has told everyone who waits
        finally:
            self._end()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            if not ticket.done():
                ticket.set_result(None)

    async def _write(self) -> None:
        """Raise `StoreUnavailable` if the engine has stopped. An error of RocksDB's stops it."""
        await self._write_frozen(*self._freeze())

    def _freeze(self) -> tuple[Layer, LogPosition]:
        self._engine.write()
        return self._database.freeze()

    async def _write_frozen(self, layer: Layer, position: LogPosition) -> None:
        engine, database = self._engine, self._database
        await engine.synced()
        try:
            began_s = steady_s()
            for is_full in database.write_slices(layer, position):
                # Callers have their turns meanwhile: without a rest, the thread that comes back from here would mostly
                # be the first one again.
                rest = database.flush_families if is_full else partial(rest_s, self._rest_after(steady_s() - began_s))
                await self._offload(rest)
                engine.check()
                began_s = steady_s()
            database.end_checkpoint()
            await self._offload(database.flush_families)
            await self._offload(database.flush)
            engine.check()
            self.written += 1
            log = database.log
            log.release(position)
            if surplus := log.take_surplus():
                await self._offload(lambda: log.delete(surplus))
        except StoreUnavailable:
            raise
        except Exception as error:  # the binding raises nothing more precise
            if engine.failure is None:
                engine.stop(error)
            engine.check()

    def _rest_after(self, slice_s: float) -> float:
        """Return how long to rest after a slice: three times as long as it took, but hardly at all once so much has
        gathered that enqueues would have to wait."""
        is_urgent = 2 * self._database.unwritten_bytes > self._checkpoint_bytes
        return 0.0 if is_urgent else min(3 * slice_s, _MAX_REST_S)

    async def _make_spare(self) -> None:
        log = self._database.log
        try:
            generation, reused = log.begin_spare()
            await self._offload(lambda: log.make_spare(generation, reused))
            log.end_spare(generation)
        except OSError as error:
            # A full segment then costs its caller a wait for one without zeros; if there is no room for that either,
            # the write fails, and says so.
            self._has_no_spare = True
            _log.warning("log_segment_not_made", extra={"path": str(self._database.path), "cause": str(error)})
        finally:
            self._is_making_spare = False
            self._wake_waiting()

    def _offload(self, function: Callable[[], None]) -> Ticket[None]:
        return self._runtime.offload_long(function, lane=self._engine.shard)

    async def close(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self._is_closed = True
        while self._is_running or self._is_making_spare:
            await self._wait_until_finished()


async def copy_shards(shards: Sequence[tuple[Checkpoints, Path]]) -> None:
    """Write a checkpoint of every shard, and a copy of each into a new directory.

    All copies are of one moment: a message that moves from one shard to another is in exactly one of them. No other
    checkpoint comes in between: the copies have no log, so that half of one would be missing the rest."""
    begun: list[Checkpoints] = []
    try:
        for checkpoints, _ in shards:
            await checkpoints._begin()
            begun.append(checkpoints)
        frozen = [checkpoints._freeze() for checkpoints in begun]
        for checkpoints, each in zip(begun, frozen, strict=True):
            await checkpoints._write_frozen(*each)
        for checkpoints, target in shards:
            await checkpoints._offload(partial(checkpoints._database.checkpoint, target))
    finally:
        for checkpoints in begun:
            checkpoints._end()
