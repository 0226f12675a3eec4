"""How many messages a queue and a tenant keep."""

import struct
from dataclasses import dataclass

_COUNTERS = struct.Struct(">QQQQQQQ")


@dataclass(slots=True)
class Counters:
    """`ready` counts the delayed too; `delayed` are those not yet due at `counted_at`. Written with every change."""

    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    failed: int = 0
    kept: int = 0
    bytes: int = 0
    counted_at: int = 0

    @property
    def messages(self) -> int:
        return self.ready + self.in_flight + self.failed + self.kept


def encode_counters(counters: Counters) -> bytes:
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
    return Counters(*_COUNTERS.unpack(raw))


@dataclass(slots=True)
class Totals:
    """What a tenant keeps in all its queues."""

    messages: int = 0
    bytes: int = 0
