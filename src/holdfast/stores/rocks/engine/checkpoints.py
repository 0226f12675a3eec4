"""Checkpoints in the background: they write to RocksDB the changes that only the log and memory have.

    freeze   the changes so far are set aside; new ones go into a new layer above them
    sync     the log is on disk up to there, so RocksDB never has data that the log may lose
    slices   RocksDB gets the changes in small parts, and other work runs in between
    flush    RocksDB is on disk
    release  log segments that are no longer needed can be reused

A crash at any point loses nothing: the log has everything since the last checkpoint that was flushed.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from holdfast.clock import sleep, steady_s
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.engine.layers import Layer
from holdfast.stores.rocks.log.commit_log import LogPosition

CHECKPOINT_BYTES = 64 << 20
# At most this many bytes are written to the log between two checks for due work.
_CHECK_BYTES = 64 << 10

# The longest pause after a slice.
_MAX_PAUSE_S = 0.002

_log = logging.getLogger("holdfast")


class Checkpoints:
    """The checkpoints of one database. They begin when enough changes have accumulated, one at a time."""

    def __init__(self, engine: Engine, runtime: Runtime, checkpoint_bytes: int) -> None:
        self._engine = engine
        self._database = engine.database
        self._runtime = runtime
        self._checkpoint_bytes = checkpoint_bytes
        # The value of `log.bytes_written` from which on it is worth checking for due work.
        self._check_again_at_bytes = 0
        self._is_running = False
        # The number of checkpoints completed.
        self.written = 0
        self._is_making_spare = False
        # There was no disk space for the next segment. It is tried again after the next checkpoint, which releases
        # some.
        self._has_no_spare = False
        self._is_closed = False
        # Callers that wait for the end of the running checkpoint or of the making of a segment.
        self._waiting: list[Ticket[None]] = []

    # --- Start -------------------------------------------------------------------------------------------------

    def start_due(self) -> None:
        """Start due work in the background. Called after each write."""
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
        """Return whether changes have accumulated so much during a checkpoint that enqueues have to wait."""
        return self._is_running and self._database.unwritten_bytes >= self._checkpoint_bytes

    async def wait_for_room(self) -> None:
        """Return once memory has room for more changes. Raise `StoreUnavailable` if the engine has stopped."""
        while self.is_behind:
            await self._wait_until_finished()
            self._engine.check()

    async def _wait_until_finished(self) -> None:
        ticket = self._runtime.ticket()
        self._waiting.append(ticket)
        await ticket

    # --- One checkpoint ----------------------------------------------------------------------------------------

    async def run_once(self) -> None:
        """Write a checkpoint, and return once RocksDB has every call that has returned before, flushed.

        Raise `StoreUnavailable` if the engine has stopped.
        """
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
            pass  # the engine has stopped, and has failed all waiting calls
        finally:
            self._end()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            if not ticket.done():
                ticket.set_result(None)

    async def _write(self) -> None:
        """Write a checkpoint. An error of RocksDB stops the engine. Raise `StoreUnavailable` if the engine has
        stopped."""
        await self._write_frozen(*self._begin_layer())

    def _begin_layer(self) -> tuple[Layer, LogPosition]:
        self._engine.write()
        return self._database.begin_checkpoint()

    async def _write_frozen(self, layer: Layer, position: LogPosition) -> None:
        engine, database = self._engine, self._database
        await engine.synced()
        try:
            began_s = steady_s()
            for is_full in database.write_slices(layer, position):
                # Callers run meanwhile. Without a pause, this thread would mostly be the next one to run again.
                pause = (
                    database.flush_families if is_full else partial(sleep, self._compute_pause_s(steady_s() - began_s))
                )
                await self._offload(pause)
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

    def _compute_pause_s(self, slice_s: float) -> float:
        """Return how long to pause after a slice, in seconds: three times its duration, at most 2 ms.

        Return 0 once more than half of the allowed changes have accumulated, because enqueues would soon have to wait.
        """
        is_urgent = 2 * self._database.unwritten_bytes > self._checkpoint_bytes
        return 0.0 if is_urgent else min(3 * slice_s, _MAX_PAUSE_S)

    async def _make_spare(self) -> None:
        log = self._database.log
        try:
            generation, reused = log.begin_spare()
            await self._offload(lambda: log.make_spare(generation, reused))
            log.end_spare(generation)
        except OSError as error:
            # The commit that fills the current segment then makes the next one, without zeros. If the disk is too full
            # for that as well, that write fails with an error.
            self._has_no_spare = True
            _log.warning("log_segment_not_made", extra={"path": str(self._database.path), "cause": str(error)})
        finally:
            self._is_making_spare = False
            self._wake_waiting()

    def _offload(self, function: Callable[[], None]) -> Ticket[None]:
        return self._runtime.offload_long(function, thread=self._engine.shard)

    async def close(self) -> None:
        """Start no more work, and wait for the work in progress."""
        self._is_closed = True
        while self._is_running or self._is_making_spare:
            await self._wait_until_finished()


async def copy_shards(shards: Sequence[tuple[Checkpoints, Path]]) -> None:
    """Write a checkpoint of every shard, and copy each shard into a new directory.

    All copies are of the same moment, so a message that moves between two shards is in exactly one of them. No other
    checkpoint may run in between: the copies have no log, so a copy with only half of a later checkpoint would lack the
    rest.
    """
    begun: list[Checkpoints] = []
    try:
        for checkpoints, _ in shards:
            await checkpoints._begin()
            begun.append(checkpoints)
        frozen = [checkpoints._begin_layer() for checkpoints in begun]
        for checkpoints, each in zip(begun, frozen, strict=True):
            await checkpoints._write_frozen(*each)
        for checkpoints, target in shards:
            await checkpoints._offload(partial(checkpoints._database.copy_to, target))
    finally:
        for checkpoints in begun:
            checkpoints._end()
