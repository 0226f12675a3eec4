"""Which database a queue is on: names to slots by a hash, slots to shards by a stored table."""

SLOTS = 1_024

_PRIME = 16_777_619
_BASIS = 2_166_136_261
_MASK = 0xFFFF_FFFF


def fnv32a(text: bytes) -> int:
    value = _BASIS
    for byte in text:
        value = (value ^ byte) * _PRIME & _MASK
    return value


def fmix32(value: int) -> int:
    """Murmur's finaliser: every bit of the input moves every bit of the output, so that correlated names spread."""
    value ^= value >> 16
    value = value * 0x85EB_CA6B & _MASK
    value ^= value >> 13
    value = value * 0xC2B2_AE35 & _MASK
    return value ^ value >> 16


def slot_of(tenant: str, queue: str) -> int:
    return fmix32(fnv32a((tenant + queue).encode())) % SLOTS


def home_of(tenant: str, slots: list[int]) -> int:
    """The shard that keeps what is one per tenant."""
    return slots[fmix32(fnv32a(tenant.encode())) % SLOTS]


def spread(shards: int) -> list[int]:
    """A first table: each shard owns every `shards`th slot."""
    return [slot % shards for slot in range(SLOTS)]
