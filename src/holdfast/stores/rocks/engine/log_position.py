"""The log position that RocksDB covers, stored in RocksDB in the same atomic write as the data that it covers."""

import struct

from holdfast.stores.rocks import keys
from holdfast.stores.rocks.log.commit_log import LogPosition

# How to change this format: store the new form under another key, read this one where that is missing, and raise the
# format of the store (`recovery/marker.py`): an older version would otherwise replay the log from a wrong position.
POSITION_KEY = keys.META + b"log"
_POSITION = struct.Struct(">QQ")


def encode_position(position: LogPosition) -> bytes:
    """Return a position as RocksDB stores it."""
    return _POSITION.pack(*position)


def decode_position(raw: bytes) -> LogPosition:
    """Return a stored position."""
    return LogPosition(*_POSITION.unpack(raw))
