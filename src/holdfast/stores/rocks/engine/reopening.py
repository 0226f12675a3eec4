"""Reopening of a store that a failed write or sync has stopped.

stopped  every call is refused; the stop is logged once
probe    after `reopen_after`, doubled each time: a file is written and synced in the directory
reopen   the old database is closed, and the directory is opened again, from disk alone
lost     the old database does not close: only another process can open the directory
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from holdfast.clock import Timer
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import sync_file
from holdfast.stores.disk.free_space import free_bytes
from holdfast.stores.rocks.engine.database import Database, HandleNotClosed
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.recovery.layout import Layout, Opened, note_closed, open_databases

REOPEN_AFTER_MS = 5_000
# Seconds that closing a stopped store may take.
CLOSING_S = 30.0
# The longest pause between two attempts.
_MAX_PAUSE_MS = 60_000

_PROBE = "probe.tmp"
# About as much as one flush of a small memtable needs. A disk with less space would stop the store again at once.
_PROBE_BYTES = 1 << 20

_log = logging.getLogger("holdfast")


class Reopening:
    """Attempts to reopen a stopped store, one at a time, until one succeeds or the store is closed."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        runtime: Runtime,
        after_ms: int,
        reopen: Callable[[], Awaitable[None]],
        lose: Callable[[HandleNotClosed], None],
    ) -> None:
        """`after_ms`: the pause before the first attempt. `reopen` opens the store again or raises. `lose` is called if
        this process can never open the store again."""
        self._path = Path(path)
        self._runtime = runtime
        self._after_ms = after_ms
        self._reopen = reopen
        self._lose = lose
        self._pause_ms = after_ms
        self._stopped_at = self._reopened_at = 0
        self._last_failure = ""
        self._timer: Timer | None = None
        # Resolved at the end of the attempt in progress.
        self._attempt: Ticket[None] | None = None
        self.is_closed = False
        self.is_lost = False
        # How often the store has stopped.
        self.stops = 0

    @property
    def is_trying(self) -> bool:
        """Return whether an attempt is in progress."""
        return self._attempt is not None

    def stopped(self, cause: str) -> None:
        """Log that the store has stopped, and try to reopen it after a pause."""
        if self.is_closed:
            return  # closing the store failed, and raises the error itself
        now_ms = self._runtime.clock.now_ms()
        # A store that stops again soon after it was reopened continues with longer pauses.
        if now_ms - self._reopened_at > _MAX_PAUSE_MS:
            self._pause_ms = self._after_ms
        self.stops += 1
        self._stopped_at, self._last_failure = now_ms, ""
        _log.error(
            "store_stopped",
            extra={
                "path": str(self._path),
                "free_bytes": free_bytes(self._path),
                "cause": cause,
                "reopens_in_s": self._pause_ms / 1_000,
            },
        )
        self._try_after_pause()

    async def close(self) -> None:
        """Make no further attempt, and wait for the attempt in progress."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._attempt is not None:
            await self._attempt

    def _try_after_pause(self) -> None:
        if not self.is_closed:
            self._timer = self._runtime.call_at(self._runtime.clock.now_ms() + self._pause_ms, self._try)
            self._pause_ms = min(2 * self._pause_ms, max(_MAX_PAUSE_MS, self._after_ms))

    def _try(self) -> None:
        self._timer = None
        if not self.is_closed:
            self._attempt = self._runtime.ticket()
            self._runtime.spawn(self.try_once())

    async def try_once(self) -> None:
        """Make one attempt. If it fails, schedule the next one."""
        try:
            # Probe before the old database is closed: while the disk is full, RocksDB's own recovery keeps it from
            # closing.
            await self._runtime.offload(lambda: probe(self._path))
            await self._reopen()
        except HandleNotClosed as error:
            _log.critical("store_lost", extra={"path": str(self._path), "cause": error.message})
            self.is_lost = True
            self._lose(error)
        except Exception as error:  # after any error the store is not open, but a later attempt may succeed
            self._note_failure(error)
            self._try_after_pause()
        else:
            self._reopened_at = self._runtime.clock.now_ms()
            if not self.is_closed:
                stopped_ms = self._reopened_at - self._stopped_at
                _log.warning(
                    "store_reopened",
                    extra={
                        "path": str(self._path),
                        "free_bytes": free_bytes(self._path),
                        "stopped_s": stopped_ms / 1_000,
                    },
                )
        finally:
            attempt, self._attempt = self._attempt, None
            if attempt is not None:
                attempt.set_result(None)

    def _note_failure(self, error: Exception) -> None:
        """Log a failed attempt."""
        cause = error.message if isinstance(error, HoldfastError) else str(error)
        # Only the first attempt that fails for a cause is logged as a warning.
        level = logging.DEBUG if cause == self._last_failure else logging.WARNING
        self._last_failure = cause
        extra = {"path": str(self._path), "free_bytes": free_bytes(self._path), "cause": cause}
        _log.log(level, "store_reopening_failed", extra=extra)


def remove_probe(path: Path) -> None:
    """Delete the file of a process that was killed during a probe."""
    with suppress(OSError):
        (path / _PROBE).unlink()


def probe(path: Path) -> None:
    """Raise `OSError` unless a file in the directory can be written and synced."""
    file_path = path / _PROBE
    try:
        with file_path.open("wb", buffering=0) as file:
            remaining = memoryview(bytes(_PROBE_BYTES))
            while remaining:
                remaining = remaining[file.write(remaining) :]
            sync_file(file.fileno())
    finally:
        remove_probe(path)


def open_after_failure(layout: Layout, lock: DirectoryLock | None = None) -> Opened:
    """Open a store in whose directory a write or sync has failed, and write everything into new, synced files.

    After a failed sync, pages in the system's cache may look written although the disk does not have them, and no later
    error reports it. So this must complete before any call is served.
    """
    opened = open_databases(layout, lock, has_lost_writes=True)
    try:
        for database in opened.databases:
            database.flush()
    except BaseException:
        for database in opened.databases:
            close_stopped(database)
        raise
    return opened


def close_stopped(database: Database) -> None:
    """Close a database that an error has stopped. Raise `HandleNotClosed` if it does not close in time."""
    try:
        database.close_stopped(CLOSING_S)
    except HandleNotClosed:
        raise
    except StoreUnavailable as error:
        _log.debug(
            "store_closing_failed error=%s", error.message
        )  # its last flush failed because the disk did, but it is closed


async def close_all_stopped(runtime: Runtime, databases: Iterable[Database]) -> None:
    """Close the databases of a stopped store on another thread. Raise `HandleNotClosed` if one does not close."""
    for database in databases:
        await runtime.offload(partial(close_stopped, database))


def close_databases(databases: Iterable[Database], layout: Layout, *, had_stopped: bool) -> None:
    """Close all databases with their store. Raise the first error, but only log it if the store had stopped."""
    failure: StoreUnavailable | None = None
    for database in databases:
        try:
            if had_stopped:
                database.close_stopped(CLOSING_S)
            else:
                database.close()
        except StoreUnavailable as error:
            failure = failure or error
    if failure is None:
        if not had_stopped:
            note_closed(layout)
    elif had_stopped:
        # Every call since the stop has failed, so no change depends on a clean close.
        _log.warning("store_closing_failed error=%s", failure.message)
    else:
        raise failure


def stop_engines(engines: Sequence[Engine], cause: str) -> bool:
    """Stop all engines of a store after one of them has stopped. Return False if that was done before."""
    if engines[0].on_stop is _ignore_stop:
        return False
    for engine in engines:
        engine.on_stop = _ignore_stop
    for engine in engines:
        if engine.failure is None:
            engine.stop(RuntimeError(cause))
    return True


def _ignore_stop(cause: str) -> None:
    """Do nothing: the handler of an engine of a store that has stopped already."""
