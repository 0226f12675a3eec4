"""The keys of the legacy layout (SPEC 4.7), with their values. Numbers are big-endian; an id may be any bytes.

available/ID                     stored_item: ready, now or later
visibility_index/SECONDS 8/ID    available/ID
in_progress/ID                   stored_item: claimed
leases/LEASE                     lease_entry: the ids of the messages under the lease
lease_expiry/SECONDS 8/LEASE     leases/LEASE
"""

AVAILABLE = b"available/"
VISIBILITY = b"visibility_index/"
IN_PROGRESS = b"in_progress/"
LEASES = b"leases/"
LEASE_EXPIRY = b"lease_expiry/"

_INSTANT = 8
# Times from here on are invalid: they do not fit into milliseconds.
LATEST_S = 1 << 43


def instant_in(prefix: bytes, key: bytes) -> int | None:
    """Return the instant in the key of an index in milliseconds, or None if the key has no valid one."""
    end = len(prefix) + _INSTANT
    if not key.startswith(prefix) or key[end : end + 1] != b"/":
        return None
    seconds = int.from_bytes(key[len(prefix) : end], "big")
    return seconds * 1_000 if seconds < LATEST_S else None


def after_instant(prefix: bytes, key: bytes) -> bytes:
    """Return the message id or the lease at the end of the key of an index."""
    return key[len(prefix) + _INSTANT + 1 :]


def id_in_index(key: bytes) -> bytes | None:
    """Return the id in a key of the visibility index, or None if the key is not of that index."""
    return None if instant_in(VISIBILITY, key) is None else after_instant(VISIBILITY, key)
