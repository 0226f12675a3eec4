"""The owner of a queue: a hash maps names to slots, and a stored table maps slots to shards."""

SLOTS = 1_024

_PRIME = 16_777_619
_BASIS = 2_166_136_261
_MASK = 0xFFFF_FFFF


def fnv32a(text: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = _BASIS
    for byte in text:
        value = (value ^ byte) * _PRIME & _MASK
    return value


def fmix32(value: int) -> int:
    """Return Murmur3's finaliser: every bit of the input affects every bit of the output, so that similar names
    spread."""
    value ^= value >> 16
    value = value * 0x85EB_CA6B & _MASK
    value ^= value >> 13
    value = value * 0xC2B2_AE35 & _MASK
    return value ^ value >> 16


def slot_of(tenant: str, queue: str) -> int:
    """Return the slot of a queue."""
    return fmix32(fnv32a((tenant + queue).encode())) % SLOTS


def home_of(tenant: str, slots: list[int]) -> int:
    """Return the shard that keeps the rows that exist once per tenant."""
    return slots[fmix32(fnv32a(tenant.encode())) % SLOTS]


def spread(shards: int) -> list[int]:
    """Return the slot table of a new store: each shard owns every `shards`th slot."""
    return [slot % shards for slot in range(SLOTS)]
