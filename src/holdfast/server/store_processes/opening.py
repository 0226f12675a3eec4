"""Opening of a divided store: first as a whole, and then its portions."""

import os
from pathlib import Path
from typing import Any

from holdfast.background import sleep_for
from holdfast.dice import Dice
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.parsing.store_url import UrlKind, parse_store_url
from holdfast.runtime import Runtime
from holdfast.server.settings import Settings
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.legacy.files import is_legacy
from holdfast.stores.rocks.portions.calls import PortionEnd
from holdfast.stores.rocks.portions.portion import Portion
from holdfast.stores.rocks.portions.store import PortionStore
from holdfast.stores.rocks.recovery.layout import read_layout, refuse_legacy
from holdfast.stores.rocks.recovery.marker import MARKER, check_directory
from holdfast.stores.rocks.recovery.opening import lock_directory
from holdfast.stores.rocks.store import RocksStore

_LOCK_TRIES = 20
_LOCK_PAUSE_MS = 100


class _NoListener:
    """A listener of a store that is opened only to be closed."""

    def is_waited_for(self, ref: QueueRef) -> bool:
        return False

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        pass

    def deadline(self, at_ms: int) -> None:
        pass

    def scheduled(self, at_ms: int) -> None:
        pass

    def stopped(self) -> None:
        pass

    def reopened(self) -> None:
        pass

    def lost(self, why: str) -> None:
        pass


def check_divisible(url: str, settings: Settings) -> Path:
    """Return the directory of a store that is to be divided among `settings.stores` processes.

    Raise `InvalidArgument` if the store cannot be divided so.
    """
    stores = settings.stores
    kind, _ = parse_store_url(url)
    if kind is not UrlKind.DIRECTORY:
        raise InvalidArgument(
            f"stores is {stores}, but only an embedded store, in a directory, has shards for several store processes: "
            "leave out stores",
            setting="stores",
        )
    path = Path(os.path.realpath(url))
    if is_legacy(path):
        raise InvalidArgument(
            f"{url} has the legacy layout, without shards: migrate it first, with `holdfast db migrate {url}`",
            setting="stores",
        )
    if settings.shards is not None and settings.shards < stores:
        raise InvalidArgument(
            f"stores is {stores}, but shards is {settings.shards}: each store process needs a shard; give stores up to "
            f"{settings.shards}",
            setting="stores",
        )
    if (path / MARKER).exists():
        check_directory(path)
        layout = read_layout(path)
        refuse_legacy(layout, "divided among processes")
        shards = layout.shards
        if shards < stores:
            raise InvalidArgument(
                f"stores is {stores}, but {url} has {shards} shard{'s' if shards > 1 else ''}: give stores up to "
                f"{shards}, or stop the server and change their number with `holdfast db reshard {url} --shards "
                f"{stores}`",
                setting="stores",
            )
    return path


async def recover_whole(path: Path, settings: Settings, dice: Dice, runtime: Runtime) -> DirectoryLock:
    """Lock a store, open it as a whole and close it again. Return the lock.

    This recovers it from a crash, finishes moves between shards of different processes, and makes a new store. A new
    store gets as many shards as there are store processes, unless `shards` says more.
    """
    lock = await _lock(path, runtime)
    try:
        shards = settings.shards
        if shards is None and not (path / MARKER).exists():
            shards = settings.stores
        whole = RocksStore(path, dice, shards=shards, lock=lock, **_options(settings))
        await whole.open(_NoListener(), runtime)
        await whole.close()
    except BaseException:
        lock.release()
        raise
    return lock


async def _lock(path: Path, runtime: Runtime) -> DirectoryLock:
    """Lock the directory. The processes of a server that was killed have the lock until they notice, a moment later."""
    for _ in range(_LOCK_TRIES):
        try:
            return lock_directory(path)
        except StoreUnavailable:
            await sleep_for(runtime.clock, _LOCK_PAUSE_MS)
    return lock_directory(path)


def make_portion(
    path: Path, settings: Settings, dice: Dice, number: int, coordinator: PortionEnd, lock: DirectoryLock
) -> PortionStore:
    """Return one portion of a store that has been recovered."""
    portion = Portion(number, settings.stores)
    return PortionStore(path, dice, portion, coordinator, lock=lock, **_options(settings))


def _options(settings: Settings) -> dict[str, Any]:
    return {
        "durability": Durability(settings.durability),
        "journal_retention_ms": settings.journal_retention_ms,
        "reopen_after_ms": settings.reopen_after_ms,
        "checkpoint_bytes": settings.checkpoint_bytes,
    }
