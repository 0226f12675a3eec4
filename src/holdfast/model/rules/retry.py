"""When a failed message may be tried again."""

# 2**62 ms is longer than any cap; beyond it the power would only cost memory.
_MAX_DOUBLINGS = 62


def backoff_ms(retry: int, base_ms: int, cap_ms: int, roll: float) -> int:
    """Full jitter: a roll in [0, 1) times the capped exponential. `retry` is 0 for the first one."""
    return int(roll * min(base_ms * 2 ** min(retry, _MAX_DOUBLINGS), cap_ms))
