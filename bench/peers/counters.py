"""Counters in a mapped file: client processes count their messages, the benchmark reads them from outside."""

import mmap
from pathlib import Path

_SLOTS = 64
_WORD_BYTES = 8

# States of a run, in their order.
PREPARE, RUN, MEASURE, STOP = range(4)


class Counters:
    """The state of a run, and one counter for each client. A counter has one writer, so that none needs a lock."""

    def __init__(self, path: Path) -> None:
        """Map the file; `create` makes it."""
        self.path = path
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), _SLOTS * _WORD_BYTES)).cast("q")

    @classmethod
    def create(cls, path: Path) -> "Counters":
        path.write_bytes(bytes(_SLOTS * _WORD_BYTES))
        return cls(path)

    @property
    def state(self) -> int:
        return self._words[0]

    @state.setter
    def state(self, state: int) -> None:
        self._words[0] = state

    def add(self, slot: int, count: int) -> None:
        self._words[1 + slot] += count

    def total(self, first: int, end: int) -> int:
        """Return the sum of the counters of the clients `first` to `end` - 1."""
        return sum(self._words[1 + first : 1 + end])
