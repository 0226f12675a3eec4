"""The part of a store that outlives its process."""

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.dice import Dice
from holdfast.stores.contract import Store
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from tests.machinery.simulation.memory import DurableMemoryStore
from tests.machinery.simulation.plan import RETENTION_MS


class Medium(Protocol):
    # Else a power cut is no more than a crash here.
    can_lose_power: bool
    # Operators move messages between queues. Where they do not, seeds stay the runs that they were.
    has_moves: bool

    def store(self) -> Store:
        """To be opened by the next process."""

    def sync(self) -> None:
        """A call that promises it has returned: what came before it is as durable as it."""

    def crash(self, roll: float, *, power_cut: bool) -> None:
        """The process is gone; with the power also part of what was not synced, by the roll."""

    def close(self) -> None: ...


class MemoryMedium:
    can_lose_power = True
    has_moves = False

    def __init__(self, dice: Dice) -> None:
        self._store = DurableMemoryStore(dice, RETENTION_MS)
        self.sync = self._store.sync

    def store(self) -> Store:
        return self._store

    def crash(self, roll: float, *, power_cut: bool) -> None:
        # Mostly all that can be undone: there is never much of it.
        undone = int(roll**0.3 * (self._store.unsynced + 1))
        self._store.crash(undone if power_cut else 0)

    def close(self) -> None:
        """There is nothing to tidy up."""


_PATIENCE_S = 60.0
# Whose power is never cut needs no disk.
_IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


class RocksMedium:
    """A directory. Its power is never cut: what a disk loses then is not for this machine to say."""

    can_lose_power = False

    def __init__(
        self,
        dice: Dice,
        durability: Durability = Durability.FSYNC,
        parent: str | None = _IN_MEMORY,
        shards: int = 1,
    ) -> None:
        self._dice = dice
        self._durability = durability
        self._shards = shards
        self.has_moves = shards > 1
        self._directory = tempfile.mkdtemp(prefix="holdfast-simulation-", dir=parent)
        self._store: RocksStore | None = None

    def store(self) -> Store:
        self._store = RocksStore(
            f"{self._directory}/store",
            self._dice,
            durability=self._durability,
            journal_retention_ms=RETENTION_MS,
            shards=self._shards,
        )
        return self._store

    def sync(self) -> None:
        """The store does so itself."""

    def crash(self, roll: float, *, power_cut: bool) -> None:
        """Leave the store as a kill does: written data is kept, and nothing is closed properly."""
        store, self._store = self._store, None
        if store is not None and store.databases:
            databases, store.databases = store.databases, []
            store._drop_parts()
            for database in databases:
                database.close_stopped(_PATIENCE_S)
            store._release()

    def close(self) -> None:
        self.crash(0.0, power_cut=False)
        shutil.rmtree(self._directory, ignore_errors=True)


# By the name of the store.
MEDIA: dict[str, Callable[[Dice], Medium]] = {
    "memory": MemoryMedium,
    "rocks": RocksMedium,
    "rocks-shards": partial(RocksMedium, shards=4),
}
