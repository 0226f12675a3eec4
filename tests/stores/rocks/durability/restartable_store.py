"""A store on disk that a test closes or kills, and opens again."""

from pathlib import Path
from typing import Any

from holdfast.client.blocking import Holdfast
from holdfast.testing import ManualClock
from tests.crash.rocks import copy_store, open_store, verify_store

DAY_MS = 86_400_000
LARGE = (1 << 20) + 300_001


class RestartableStore:
    """One store that a test opens again and again on one clock, after closing it or as a kill leaves it."""

    def __init__(self, directory: Path, ends: str) -> None:
        self.clock = ManualClock()
        self._directory = directory
        self._ends = ends
        self._number = 0
        self._opened: list[Holdfast] = []
        self.path = directory / "0"

    def open(self, **options: Any) -> Holdfast:
        """Open the store."""
        options.setdefault("settings", {"max_payload": 4 << 20})
        hf = open_store(self.path, self.clock, **options)
        self._opened.append(hf)
        return hf

    def reopen(self, **options: Any) -> Holdfast:
        """End the open store, check its files, and open it again."""
        [hf] = self._opened
        if self._ends == "closed":
            hf.close()
            self._opened.clear()
        else:
            self._number += 1
            self.path = copy_store(self.path, self._directory / str(self._number))
            self._opened.clear()
            hf.close()
        verify_store(self.path, f"after it was {self._ends}")
        return self.open(**options)

    def end(self) -> None:
        """Close everything that is open."""
        for hf in self._opened:
            hf.close()
