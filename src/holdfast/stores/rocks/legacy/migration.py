"""The migration of a legacy database to a store in the same directory (SPEC 9.9).

    survey    read the whole old database; if any key cannot be read, and the caller has not accepted the exact number
    of
              such keys, fail, with nothing written
    copy      write every message to a store in DIR/holdfast-new, in atomic steps that include the progress
    check     read both databases; the counts by state and a hash of all contents must agree
    keep      write everything that is not a message to DIR/legacy-unreadable.jsonl
    switch    move the new database to DIR/db and its marker to DIR, and then remove the old files

A migration may be interrupted at any point; the next run continues it. Until the switch, the old database is unchanged.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.clock import Clock, SystemClock
from holdfast.dice import Dice, SystemDice
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.runtime import LoopRuntime
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import sync_directory, sync_file
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.legacy.entries import LegacyMessage, Oddity
from holdfast.stores.rocks.legacy.files import is_database_file, is_legacy, lock_legacy
from holdfast.stores.rocks.legacy.kept_keys import UNREADABLE, keep_keys
from holdfast.stores.rocks.legacy.legacy_database import LegacyDatabase
from holdfast.stores.rocks.legacy.message_import import LegacyImport, MigrationProgress
from holdfast.stores.rocks.legacy.online.adoption import is_moving
from holdfast.stores.rocks.legacy.survey import Survey, require_readable, sum_store, survey
from holdfast.stores.rocks.recovery.marker import MARKER
from holdfast.stores.rocks.recovery.opening import DATABASE
from holdfast.stores.rocks.store import RocksStore

NEW = "holdfast-new"
_CHECKED = "checked"
# The first line of the file `checked`. Change it if a copy that an older version has checked must be copied again.
_RULES = "every key readable, or accepted\n"
STEP = 1_000

_RETENTION_MS = 7 * 86_400_000

# Called with the name of the stage, the amount of it that is done, and its total; None: the total is unknown.
ReportStage = Callable[[str, int, int | None], None]


class LegacyMigrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a migration. `is_done` is False if the directory had been migrated before."""

    path: str
    is_done: bool
    # The order of the fields of the old values.
    order: str = ""
    messages: int = 0
    ready: int = 0
    in_flight: int = 0
    digest: str = ""
    # The numbers of keys that were not messages, by kind.
    oddities: dict[str, int] = {}
    # The path of the file with their contents; None: there were none to keep.
    kept: str | None = None


class LegacyMigration:
    """The steps of a migration, for callers that run them one by one. `migrate_legacy` runs all of them.

    `accept_unreadable` is the exact number of unreadable keys and values to leave out of the store, by default 0.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        accept_unreadable: int = 0,
        clock: Clock | None = None,
        dice: Dice | None = None,
    ) -> None:
        self.path = Path(path)
        self._accepted = accept_unreadable
        self._directory_lock: DirectoryLock | None = None
        self._clock = clock or SystemClock()
        self._dice = dice or SystemDice()
        self._legacy: LegacyDatabase | None = None
        self._store: RocksStore | None = None
        self._runtime: LoopRuntime | None = None

    @property
    def is_switched(self) -> bool:
        """Return whether the new store has replaced the old database. Old files may still have to be removed."""
        is_moved = (self.path / DATABASE).exists() and (self.path / NEW / MARKER).exists()
        return is_moved or (self.path / MARKER).exists()

    @property
    def has_old_files(self) -> bool:
        """Return whether files of the old database or of the copy still have to be removed after the switch."""
        return (self.path / NEW).exists() or (self.path / "CURRENT").exists()

    def lock(self) -> None:
        """Lock the directory until `unlock`, including the time between the copy and the switch."""
        if self.path.is_dir():
            self._directory_lock = lock_legacy(self.path)

    def unlock(self) -> None:
        """Release the lock on the directory."""
        if self._directory_lock is not None:
            self._directory_lock.release()

    async def open(self, progress: Callable[[int], None] = lambda done: None) -> None:
        """Read the whole old database, then open the copy.

        Raise `InvalidArgument`, with nothing written, if keys are unreadable and their number was not accepted.
        """
        self._legacy = LegacyDatabase(self.path, is_migrated=True, lock=self._directory_lock)
        try:
            self._require_readable(survey(self._legacy, self._clock.now_ms(), progress))
            await self._open_copy(self._legacy)
        except BaseException:
            await self.close()
            raise

    async def _open_copy(self, legacy: LegacyDatabase) -> None:
        store = RocksStore(self.path / NEW, self._dice, durability=Durability.OS, journal_retention_ms=_RETENTION_MS)
        self._runtime = LoopRuntime(self._clock)
        await store.open(_NullListener(), self._runtime)
        self._store = store
        self._importer = LegacyImport(store, self._dice)
        progress, order = self._importer.progress(), str(legacy.order)
        if progress is None:
            progress = MigrationProgress(begun_at=self._clock.now_ms(), order=order)
            await self._importer.note(progress)
        elif progress.order != order:
            raise StoreUnavailable(
                f"the copy in {self.path / NEW} was begun with fields in the order {progress.order}, but they are in "
                f"the order {order}: delete {self.path / NEW} and run this again",
                path=str(self.path),
            )
        self.progress = progress
        self._source = legacy.read(progress.position)

    async def close(self) -> None:
        """Close the copy and the old database. Idempotent."""
        store, self._store = self._store, None
        self._source = iter(())
        if store is not None:
            await store.close()
        if self._runtime is not None:
            await self._runtime.aclose()
        legacy, self._legacy = self._legacy, None
        if legacy is not None:
            legacy.close()

    def estimate(self) -> int:
        """Return the approximate number of keys to copy."""
        return self._opened()[0].estimate()

    async def copy_once(self, limit: int = STEP) -> int:
        """Copy up to `limit` further messages, and return the number of keys read; 0: there are no more."""
        self._opened()
        messages: list[LegacyMessage] = []
        progress = self.progress
        if progress.is_copied:
            return 0
        keys_read = 0
        position = progress.position
        for position, found in self._source:  # noqa: B007  # the last position is used below
            keys_read += 1
            if isinstance(found, LegacyMessage):
                messages.append(found)
            # Also end the step after many keys without a message, so that an interrupted run need not read them again.
            if len(messages) >= limit or keys_read >= 10 * limit:
                break
        progress = replace(
            progress,
            position=position,
            messages=progress.messages + len(messages),
            keys=progress.keys + keys_read,
            is_copied=keys_read == 0,
        )
        await self._importer.put(messages, progress, self._clock.now_ms())
        self.progress = progress
        return keys_read

    async def check(self, progress: Callable[[int], None] = lambda done: None) -> Survey:
        """Read both databases, and return the survey of the old one. Raise `StoreUnavailable` if they differ."""
        legacy, store = self._opened()
        old = survey(legacy, self.progress.begun_at, progress)
        self._require_readable(old)
        copied = await sum_store(store, self._clock.now_ms(), progress)
        if old.sum != copied:
            raise StoreUnavailable(
                f"the copy in {self.path / NEW} differs from {self.path}: the copy has {copied}, the old database "
                f"{old.sum}. Nothing was removed: delete {self.path / NEW} and run this again",
                path=str(self.path),
            )
        return old

    def _require_readable(self, found: Survey) -> None:
        require_readable(found, self._accepted, f"they are left out of the store and kept in {self.path / UNREADABLE}")

    def keep_unreadable(self) -> Path | None:
        """Write every key and value that is not a message to a file, as one line of JSON each, because the switch
        removes the old files. Return the path of the file, or None if there are no such keys."""
        legacy, _ = self._opened()
        return keep_keys(self.path, (found for _, found in legacy.read() if isinstance(found, Oddity)))

    async def finish(self) -> None:
        """Record that the copy is complete and checked, delete the stored progress, and close the copy."""
        fresh = self.path / NEW / (_CHECKED + ".new")
        with fresh.open("w") as file:
            file.write(self._checked_state())
            file.flush()
            sync_file(file.fileno())
        fresh.replace(self.path / NEW / _CHECKED)
        sync_directory(self.path / NEW)
        await self._importer.note(None)
        await self.close()

    def is_checked(self) -> bool:
        """Return whether an earlier run has finished the check.

        Raise `StoreUnavailable` if the old database was written to since then, or if that run was by a version that did
        not refuse unreadable values.
        """
        checked = self.path / NEW / _CHECKED
        if not checked.exists():
            return False
        if checked.read_text() != self._checked_state():
            raise StoreUnavailable(
                f"{self.path} was written to since it was copied, or copied by an older Holdfast: delete "
                f"{self.path / NEW} and run this again",
                path=str(self.path),
            )
        return True

    def _checked_state(self) -> str:
        """Return the content of the file `checked`: the rules of the check, and the names and sizes of the old
        database's files, which change whenever a program opens it for writing."""
        files = sorted(
            (entry.name, entry.stat().st_size)
            for entry in self.path.iterdir()
            if entry.suffix in (".sst", ".log", ".blob") or entry.name.startswith(("CURRENT", "MANIFEST-"))
        )
        return _RULES + "".join(f"{name} {size}\n" for name, size in files)

    # --- The switch --------------------------------------------------------------------------------------------

    def switch(self, report: Callable[[str], None] = lambda what: None) -> None:
        """Make the directory a store. After an interruption, another call continues; steps already done are skipped."""
        new = self.path / NEW
        if not (self.path / DATABASE).exists():
            report("moving the new database in")
            (new / DATABASE).rename(self.path / DATABASE)
            sync_directory(self.path)
        if not (self.path / MARKER).exists():
            report("marking the store")
            (new / MARKER).rename(self.path / MARKER)
            sync_directory(self.path)
        report("removing the old files")
        self._remove_old(report)
        shutil.rmtree(new, ignore_errors=True)
        sync_directory(self.path)

    def _remove_old(self, report: Callable[[str], None]) -> None:
        """Remove the old database's files. CURRENT is the first, because without it no program takes the remaining
        files for a database."""
        for name in ("CURRENT", *sorted(entry.name for entry in self.path.iterdir() if is_database_file(entry))):
            report(f"removing {name}")
            (self.path / name).unlink(missing_ok=True)

    def _opened(self) -> tuple[LegacyDatabase, RocksStore]:
        if self._legacy is None or self._store is None:
            raise InvalidArgument("the migration is not open")
        return self._legacy, self._store


async def migrate_legacy(
    path: str | os.PathLike[str],
    report: ReportStage = lambda stage, done, total: None,
    *,
    accept_unreadable: int = 0,
    clock: Clock | None = None,
    step: int = STEP,
) -> LegacyMigrationResult:
    """Run all remaining steps of a migration. Does nothing to a directory that is a store already, unless messages are
    still being moved into it (`online`): then move the others.

    `step` is the number of messages in each atomic step. Raise `InvalidArgument` if the directory has no legacy
    database or has unreadable keys whose number was not accepted, `StoreUnavailable` if it is in use or the copy is
    wrong.
    """
    if is_moving(Path(path)):
        # Imported here, because it needs the store that this module makes.
        from holdfast.stores.rocks.legacy.online.finishing import finish_move

        moved = await finish_move(
            path,
            _NullListener(),
            lambda done: report("move", done, None),
            accept_unreadable=accept_unreadable,
            clock=clock,
        )
        return LegacyMigrationResult(path=str(path), is_done=True, messages=moved)
    migration = LegacyMigration(path, accept_unreadable=accept_unreadable, clock=clock)
    if migration.is_switched and not migration.has_old_files:
        return LegacyMigrationResult(path=str(path), is_done=False)
    migration.lock()
    try:
        return await _migrate(str(path), migration, report, step)
    finally:
        migration.unlock()


async def _migrate(path: str, migration: LegacyMigration, report: ReportStage, step: int) -> LegacyMigrationResult:
    if migration.is_switched:
        has_old_files = migration.has_old_files
        if has_old_files:
            migration.switch(lambda what: report(what, 0, None))
        return LegacyMigrationResult(path=path, is_done=has_old_files)
    if migration.is_checked():
        migration.switch(lambda what: report(what, 0, None))
        return LegacyMigrationResult(path=path, is_done=True)
    try:
        await migration.open(lambda done: report("survey", done, None))
        total = migration.estimate()
        report("copy", migration.progress.keys, total)
        while await migration.copy_once(step):
            report("copy", migration.progress.keys, max(total, migration.progress.keys))
        found = await migration.check(lambda done: report("check", done, None))
        kept = migration.keep_unreadable()
        report("keep", 0, None)
        await migration.finish()
    finally:
        await migration.close()
    report("switch", 0, None)
    migration.switch(lambda what: report(what, 0, None))
    return LegacyMigrationResult(
        path=path,
        is_done=True,
        order=found.order,
        messages=found.sum.messages,
        ready=found.sum.ready,
        in_flight=found.sum.in_flight,
        digest=found.sum.digest,
        oddities=found.oddities,
        kept=None if kept is None else str(kept),
    )


class _NullListener:
    """A `Listener` that ignores every call, because nothing is claimed from the copy."""

    def is_waited_for(self, ref: QueueRef) -> bool:
        return False

    def ready(self, ref: QueueRef, at_ms: int) -> None: ...

    def stopped(self) -> None: ...

    def reopened(self) -> None: ...

    def lost(self, why: str) -> None: ...

    def deadline(self, at_ms: int) -> None: ...

    def scheduled(self, at_ms: int) -> None: ...


__all__ = ["LegacyMigration", "LegacyMigrationResult", "is_legacy", "migrate_legacy"]
