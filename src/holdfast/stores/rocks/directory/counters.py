"""The numbers of messages and bytes of a queue and of a tenant.

How to change this format: `encode_counters` writes seven numbers of 8 bytes, big-endian, in the order of the fields of
`Counters`. To add a field, append it with the default 0 and let `decode_counters` also accept the shorter value; the
next change of a queue writes the new form. Older versions cannot read a longer value, so raise the format of the store
(`recovery/marker.py`).
"""

import struct
from dataclasses import dataclass

_COUNTERS = struct.Struct(">QQQQQQQ")


@dataclass(slots=True)
class Counters:
    """The counts of one queue by state, written with every change of the queue.

    `ready` includes the delayed messages; `delayed` counts those that are not due at the instant `counted_at`. `kept`
    counts the records of succeeded messages.
    """

    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    failed: int = 0
    kept: int = 0
    bytes: int = 0
    counted_at: int = 0

    @property
    def messages(self) -> int:
        """Return the number of messages in all states."""
        return self.ready + self.in_flight + self.failed + self.kept


def encode_counters(counters: Counters) -> bytes:
    """Return the stored bytes of the counters."""
    return _COUNTERS.pack(
        counters.ready,
        counters.delayed,
        counters.in_flight,
        counters.failed,
        counters.kept,
        counters.bytes,
        counters.counted_at,
    )


def decode_counters(raw: bytes) -> Counters:
    """Return the counters with these stored bytes. Raise `struct.error` if they are damaged."""
    return Counters(*_COUNTERS.unpack(raw))


@dataclass(slots=True)
class Totals:
    """The number and size of all messages of a tenant."""

    messages: int = 0
    bytes: int = 0
