"""The entries of a legacy database as its reader reports them: messages, and keys that are not messages."""

from enum import StrEnum
from typing import NamedTuple


class OddityKind(StrEnum):
    """The reason why a key is not counted as a message."""

    # The migration keeps the keys and values of the first three kinds in a file.
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown key"
    # A second copy of a message that is both ready and in progress.
    TWIN = "in both states"
    STALE_INDEX = "index without a message"
    STALE_LEASE = "lease without a message"


class LegacyMessage(NamedTuple):
    """A message. `lease_expires_at` is the end of its lease; None: it is not under a lease."""

    id: bytes
    payload: bytes
    visible_at: int
    lease_expires_at: int | None

    def is_held(self, now_ms: int) -> bool:
        """Return whether it is in flight: under a lease that has not ended."""
        return self.lease_expires_at is not None and self.lease_expires_at > now_ms

    def ready_at(self) -> int:
        """Return the instant from which it can be claimed: its visible time or the end of its lease, if that is
        later."""
        return max(self.visible_at, self.lease_expires_at or 0)


class Oddity(NamedTuple):
    """A key that is not counted as a message, with the reason."""

    kind: OddityKind
    key: bytes
    value: bytes
    why: str

    @property
    def is_unreadable(self) -> bool:
        """Return whether it may still be a message: a damaged one, or one of another layout."""
        return self.kind in (OddityKind.UNREADABLE, OddityKind.UNKNOWN)


class LegacyPosition(NamedTuple):
    """The last key that was read, and its column family. Families are read in the order of their names."""

    family: str
    key: bytes
