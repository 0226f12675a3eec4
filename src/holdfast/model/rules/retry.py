"""The delay before a failed message is ready again."""

# 2**62 ms is longer than any cap. A larger power would only cost memory.
_MAX_DOUBLINGS = 62


def backoff_ms(retry: int, base_ms: int, cap_ms: int, roll: float) -> int:
    """Return an exponential delay with full jitter.

    Args:
        retry: The number of the retry, starting from 0.
        base_ms: The upper bound of the first delay, which doubles with each retry.
        cap_ms: The upper bound of all delays.
        roll: A random number in [0, 1).
    """
    return int(roll * min(base_ms * 2 ** min(retry, _MAX_DOUBLINGS), cap_ms))
