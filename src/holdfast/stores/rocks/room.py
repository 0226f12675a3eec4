"""Whether the disk has room for more."""

import os

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.engine import Engine

# How often the free space is looked at, in milliseconds.
_LOOK_MS = 200


class DiskRoom:
    def __init__(self, engine: Engine, path: str | os.PathLike[str], low_bytes: int) -> None:
        self._engine = engine
        self._path = path
        self._low_bytes = low_bytes
        self._is_low = False
        self._looked_at = 0

    def check(self, now_ms: int) -> None:
        if abs(now_ms - self._looked_at) >= _LOOK_MS:
            self._looked_at = now_ms
            self._is_low = self._engine.database.free_bytes() < self._low_bytes
        if self._is_low:
            raise StoreUnavailable(
                f"less than {self._low_bytes} bytes are left on the disk of {self._path}: free some space; acks "
                "still work"
            )
