"""A legacy database made into a store, in the same directory (SPEC 9.9).

    survey    the old database is read whole; unless every key can be read, or the caller accepts the exact number that
              cannot, the migration ends here, and nothing was written
    copy      DIR/holdfast-new grows to a store with every message, in atomic steps that note how far they are
    check     both are read whole: counts by state and a hash of all contents must agree
    keep      everything that is not a message is written to DIR/legacy-unreadable.jsonl
    switch    the new database moves to DIR/db, DIR gets its marker; only then are the old files removed

Each may be interrupted anywhere: run again, it goes on. Until the switch nothing of the old database has changed.
"""

import base64
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.clock import Clock, SystemClock
from holdfast.dice import Dice, SystemDice
from holdfast.model.answers import Found
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.requests import EVERYTHING
from holdfast.runtime import LoopRuntime
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.disk.file_sync import sync_directory, sync_file
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.legacy.files import is_database_file, is_legacy, lock_legacy
from holdfast.stores.rocks.legacy.legacy_database import LegacyDatabase, LegacyMessage, Oddity, OddityKind
from holdfast.stores.rocks.legacy.message_import import LEGACY_QUEUE, LegacyImport, MigrationProgress, old_id
from holdfast.stores.rocks.legacy.survey import Sum, Summing, Survey, require_readable, survey
from holdfast.stores.rocks.recovery.marker import MARKER
from holdfast.stores.rocks.recovery.opening import DATABASE
from holdfast.stores.rocks.store import RocksStore

NEW = "holdfast-new"
UNREADABLE = "legacy-unreadable.jsonl"
_CHECKED = "checked"
# The first line of that file. Change it when a copy that an older version has checked is not to be trusted.
_RULES = "every key readable, or accepted\n"
STEP = 1_000

_RETENTION_MS = 7 * 86_400_000
# Of these the content is kept: what else there is says nothing that the messages do not.
_KEPT_KINDS = frozenset({OddityKind.UNREADABLE, OddityKind.UNKNOWN, OddityKind.TWIN})

# The stage, how much of it is done, and of how much; of the last two None is not known.
MigrationTold = Callable[[str, int, int | None], None]


class LegacyMigrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a migration. `is_done` False: there was nothing left to do."""

    path: str
    is_done: bool
    # The order of the old values' fields.
    order: str = ""
    messages: int = 0
    ready: int = 0
    in_flight: int = 0
    digest: str = ""
    # Keys that were not messages, by kind.
    oddities: dict[str, int] = {}
    # The file with their contents.
    kept: str | None = None


class LegacyMigration:
    """The steps, for a command or for a job that shows its progress elsewhere.

    `accept_unreadable`: the exact number of keys and values that may be left out of the store; by default none.
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
        """Whether the new store has taken the place of the old database, if it may not have been tidied up after."""
        is_moved = (self.path / DATABASE).exists() and (self.path / NEW / MARKER).exists()
        return is_moved or (self.path / MARKER).exists()

    @property
    def has_rest(self) -> bool:
        """Return whether files of the old database, or of the copy, are still to be removed after the switch."""
        return (self.path / NEW).exists() or (self.path / "CURRENT").exists()

    def lock(self) -> None:
        """Keep out every other opening of the directory until `unlock`, also between the copy and the switch."""
        if self.path.is_dir():
            self._directory_lock = lock_legacy(self.path)

    def unlock(self) -> None:
        if self._directory_lock is not None:
            self._directory_lock.release()

    async def open(self, told: Callable[[int], None] = lambda done: None) -> None:
        """Read the old database whole, then open the copy.

        Raise `InvalidArgument` if keys are unreadable and their number was not accepted; nothing was written then.
        """
        self._legacy = LegacyDatabase(self.path, is_migrated=True, lock=self._directory_lock)
        try:
            self._require_readable(survey(self._legacy, self._clock.now_ms(), told))
            await self._open_copy(self._legacy)
        except BaseException:
            await self.close()
            raise

    async def _open_copy(self, legacy: LegacyDatabase) -> None:
        store = RocksStore(self.path / NEW, self._dice, durability=Durability.OS, journal_retention_ms=_RETENTION_MS)
        self._runtime = LoopRuntime(self._clock)
        await store.open(_Nobody(), self._runtime)
        self._store = store
        self._intake = LegacyImport(store, self._dice)
        progress, order = self._intake.progress(), str(legacy.order)
        if progress is None:
            progress = MigrationProgress(begun_at=self._clock.now_ms(), order=order)
            await self._intake.note(progress)
        elif progress.order != order:
            raise StoreUnavailable(
                f"the copy in {self.path / NEW} was begun with fields in the order {progress.order}, but they are in "
                f"the order {order}: delete {self.path / NEW} and run this again",
                path=str(self.path),
            )
        self.progress = progress
        self._source = legacy.read(progress.place)

    async def close(self) -> None:
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
        return self._opened()[0].estimate()

    async def copy_once(self, limit: int = STEP) -> int:
        """So many messages more; how many it were. 0: there are no more."""
        self._opened()
        messages: list[LegacyMessage] = []
        progress = self.progress
        if progress.is_copied:
            return 0
        looked = 0
        place = progress.place
        for place, found in self._source:  # noqa: B007  (the last one is used below)
            looked += 1
            if isinstance(found, LegacyMessage):
                messages.append(found)
            # Of what is no message there may be a lot in a row: its reading is not to be done again either.
            if len(messages) >= limit or looked >= 10 * limit:
                break
        progress = replace(
            progress,
            place=place,
            messages=progress.messages + len(messages),
            keys=progress.keys + looked,
            is_copied=looked == 0,
        )
        await self._intake.put(messages, progress, self._clock.now_ms())
        self.progress = progress
        return looked

    async def check(self, told: Callable[[int], None] = lambda done: None) -> Survey:
        """Read both sides whole. Raise `StoreUnavailable` if they differ; nothing was removed then."""
        legacy, store = self._opened()
        was = survey(legacy, self.progress.begun_at, told)
        self._require_readable(was)
        now = await _sum_store(store, self._clock.now_ms(), told)
        if was.sum != now:
            raise StoreUnavailable(
                f"the copy in {self.path / NEW} is not what is in {self.path}: {was.sum} there, {now} here. Nothing "
                f"was removed: delete {self.path / NEW} and run this again",
                path=str(self.path),
            )
        return was

    def _require_readable(self, found: Survey) -> None:
        require_readable(found, self._accepted, f"they are left out of the store and kept in {self.path / UNREADABLE}")

    def keep_unreadable(self) -> Path | None:
        """Write every key and value that is not a message to a file, a line of JSON each: the old files are removed."""
        legacy, _ = self._opened()
        place, fresh = self.path / UNREADABLE, self.path / (UNREADABLE + ".new")
        count = 0
        with fresh.open("wb") as file:
            for _, found in legacy.read():
                if isinstance(found, Oddity) and found.kind in _KEPT_KINDS:
                    file.write(msgspec.json.encode(_line_of(found)) + b"\n")
                    count += 1
            file.flush()
            sync_file(file.fileno())
        if not count:
            fresh.unlink()
            return None
        fresh.replace(place)
        sync_directory(self.path)
        return place

    async def finish(self) -> None:
        """The copy is whole and checked: it forgets that it was one, and is closed."""
        fresh = self.path / NEW / (_CHECKED + ".new")
        with fresh.open("w") as file:
            file.write(self._checked_state())
            file.flush()
            sync_file(file.fileno())
        fresh.replace(self.path / NEW / _CHECKED)
        sync_directory(self.path / NEW)
        await self._intake.note(None)
        await self.close()

    def is_checked(self) -> bool:
        """Return whether an earlier run came as far as the switch. Raise `StoreUnavailable` if the old database was
        written to since, or if that run was of a version that did not refuse unreadable values."""
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
        """Return the rules of the check, and the old database's files: a program that opens it to write adds some."""
        files = sorted(
            (entry.name, entry.stat().st_size)
            for entry in self.path.iterdir()
            if entry.suffix in (".sst", ".log", ".blob") or entry.name.startswith(("CURRENT", "MANIFEST-"))
        )
        return _RULES + "".join(f"{name} {size}\n" for name, size in files)

    # --- The switch --------------------------------------------------------------------------------------------

    def switch(self, told: Callable[[str], None] = lambda what: None) -> None:
        """From here on the directory is a store. Each step may be the last, and is not done twice."""
        new = self.path / NEW
        if not (self.path / DATABASE).exists():
            told("moving the new database in")
            (new / DATABASE).rename(self.path / DATABASE)
            sync_directory(self.path)
        if not (self.path / MARKER).exists():
            told("marking the store")
            (new / MARKER).rename(self.path / MARKER)
            sync_directory(self.path)
        told("removing the old files")
        self._remove_old(told)
        shutil.rmtree(new, ignore_errors=True)
        sync_directory(self.path)

    def _remove_old(self, told: Callable[[str], None]) -> None:
        """CURRENT goes first: without it no program takes what is left for a database."""
        for name in ("CURRENT", *sorted(entry.name for entry in self.path.iterdir() if is_database_file(entry))):
            told(f"removing {name}")
            (self.path / name).unlink(missing_ok=True)

    def _opened(self) -> tuple[LegacyDatabase, RocksStore]:
        if self._legacy is None or self._store is None:
            raise InvalidArgument("the migration is not open")
        return self._legacy, self._store


async def migrate_legacy(
    path: str | os.PathLike[str],
    told: MigrationTold = lambda stage, done, total: None,
    *,
    accept_unreadable: int = 0,
    clock: Clock | None = None,
    step: int = STEP,
) -> LegacyMigrationResult:
    """Run every step that remains. A directory that is a store already is left as it is."""
    migration = LegacyMigration(path, accept_unreadable=accept_unreadable, clock=clock)
    if migration.is_switched and not migration.has_rest:
        return LegacyMigrationResult(path=str(path), is_done=False)
    migration.lock()
    try:
        return await _migrate(str(path), migration, told, step)
    finally:
        migration.unlock()


async def _migrate(path: str, migration: LegacyMigration, told: MigrationTold, step: int) -> LegacyMigrationResult:
    if migration.is_switched:
        has_rest = migration.has_rest
        if has_rest:
            migration.switch(lambda what: told(what, 0, None))
        return LegacyMigrationResult(path=path, is_done=has_rest)
    if migration.is_checked():
        migration.switch(lambda what: told(what, 0, None))
        return LegacyMigrationResult(path=path, is_done=True)
    try:
        await migration.open(lambda done: told("survey", done, None))
        total = migration.estimate()
        told("copy", migration.progress.keys, total)
        while await migration.copy_once(step):
            told("copy", migration.progress.keys, max(total, migration.progress.keys))
        agreed = await migration.check(lambda done: told("check", done, None))
        kept = migration.keep_unreadable()
        told("keep", 0, None)
        await migration.finish()
    finally:
        await migration.close()
    told("switch", 0, None)
    migration.switch(lambda what: told(what, 0, None))
    return LegacyMigrationResult(
        path=path,
        is_done=True,
        order=agreed.order,
        messages=agreed.sum.messages,
        ready=agreed.sum.ready,
        in_flight=agreed.sum.in_flight,
        digest=agreed.sum.digest,
        oddities=agreed.oddities,
        kept=None if kept is None else str(kept),
    )


# --- What both sides hold ------------------------------------------------------------------------------------------


async def _sum_store(store: RocksStore, now_ms: int, told: Callable[[int], None]) -> Sum:
    messages, after = Summing(), None
    if await store.directory.find_queue(LEGACY_QUEUE) is None:
        return messages.sum
    while True:
        listing = await store.browse(LEGACY_QUEUE, None, EVERYTHING, after, STEP, now_ms)
        for found in listing.found:
            id = old_id(found.envelope.id, found.envelope.headers)
            is_held = found.life.state is State.IN_FLIGHT
            messages.add(id, await _payload_of(store, found), is_held=is_held)
        told(messages.sum.messages)
        after = listing.after
        if after is None:
            return messages.sum


async def _payload_of(store: RocksStore, found: Found) -> bytes:
    envelope = found.envelope
    if envelope.pieces is None:
        return envelope.payload
    reader = await store.payloads.read(LEGACY_QUEUE, envelope.id, envelope.pieces)
    return b"".join([part async for part in reader])


def _line_of(oddity: Oddity) -> dict[str, str]:
    return {
        "kind": oddity.kind.value,
        "why": oddity.why,
        "key_base64": base64.b64encode(oddity.key).decode(),
        "value_base64": base64.b64encode(oddity.value).decode(),
    }


class _Nobody:
    """`Listener` of a store that nobody serves."""

    def is_waited_for(self, ref: QueueRef) -> bool:
        return False

    def ready(self, ref: QueueRef, at_ms: int) -> None: ...

    def stopped(self) -> None: ...

    def reopened(self) -> None: ...

    def lost(self, why: str) -> None: ...

    def deadline(self, at_ms: int) -> None: ...

    def scheduled(self, at_ms: int) -> None: ...


__all__ = ["LegacyMigration", "LegacyMigrationResult", "is_legacy", "migrate_legacy"]
