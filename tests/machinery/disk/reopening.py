"""A store that is stopped by disk errors and reopens by itself, for kills in the middle of that."""

from collections.abc import Callable
from pathlib import Path

from tests.machinery.disk import shim
from tests.machinery.disk.notes import Notes, Reached
from tests.machinery.disk.script import DiskScript
from tests.machinery.disk.shim import Fault

_EVERYTHING = 1 << 40


class ReopeningScript(DiskScript):
    """Calls `begin` when the disk works again, just before the store reopens."""

    def __init__(
        self,
        root: Path,
        notes: Notes,
        *,
        seed: int,
        durability: str,
        shards: int,
        watched: Path,
        begin: Callable[[], None],
    ) -> None:
        super().__init__(root, notes, seed=seed, durability=durability, shards=shards, goes_on=True)
        self._watched = watched
        self._begin = begin
        # Every write of a store fails on a full disk; one that does not sync hears of nothing else.
        self._fault = Fault.FAIL_SYNC if durability == "fsync" else Fault.FILL_DISK

    def _run(self) -> None:
        self._step(self._open)
        self._step(self._prepare)
        for number in range(2):
            self._round(number)
        shim.watch(self._watched)
        shim.arm(self._fault, 1, _EVERYTHING)
        self._step(self._enqueue_one)
        self._step(self._enqueue_batch)
        self._step(self._close)
        self._notes.note(Reached("end"))

    def _wait_for_reopening(self) -> None:
        shim.watch(self._watched)
        self._begin()
        super()._wait_for_reopening()
