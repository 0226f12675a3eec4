"""A handler's slots: each is for one message in hand."""

from collections.abc import Callable


class Slot:
    """One slot in use. It is freed once, and its consumer learns of it within the same step."""

    __slots__ = ("_freed", "_is_free")

    def __init__(self, freed: Callable[[str | None], None]) -> None:
        self._freed = freed
        self._is_free = False

    def free(self, cannot_begin: str | None = None) -> None:
        """Let the next message have the slot. `cannot_begin`: why this one's handler could not even begin."""
        if not self._is_free:
            self._is_free = True
            self._freed(cannot_begin)
