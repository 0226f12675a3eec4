"""The distribution of the delays before retries (specification 2.8)."""

import math
from collections.abc import Sequence

from holdfast.client.queue import AsyncQueue
from holdfast.testing.clock import ManualClock

# The number of retries of each message. The cap of 30 s applies from the seventh: 500 ms * 2 ** 6 is 32 s.
RETRIES = 9
_BATCH = 1_000
# Kolmogorov's bound for a chance of less than one in a billion that a uniform sample fails. So the law holds with any
# seed, also where a store draws random numbers for other things in between.
_KOLMOGOROV = 3.3


async def check_uniform_backoff(q: AsyncQueue, clock: ManualClock, messages: int) -> None:
    """Nack `messages` messages nine times each, and assert that each delay is drawn uniformly from its range.

    The range of retry n is 0 to min(500 ms * 2 ** n, 30 s). The queue must be new. Also assert that the store keeps the
    delays that the nacks return.
    """
    for first in range(0, messages, _BATCH):
        await q.enqueue([b""] * min(_BATCH, messages - first), max_retries=RETRIES)
    shares: list[float] = []
    for retry in range(RETRIES):
        bound_ms = min(500 * 2**retry, 30_000)
        delays = await _nack_all(q, clock, messages)
        check_uniform(delays, bound_ms, f"retry {retry}")
        shares += [(delay + 0.5) / bound_ms for delay in delays]
        clock.advance(bound_ms // 2)
        assert (await q.stats()).delayed == sum(delay > bound_ms // 2 for delay in delays)
        clock.advance(bound_ms - bound_ms // 2)
    check_uniform(shares, 1, "all retries")


async def _nack_all(q: AsyncQueue, clock: ManualClock, messages: int) -> list[int]:
    """Claim all messages and nack them. Return the delays before they are ready again."""
    claimed = 0
    results = []
    # All are claimed before any is nacked, because a delay of 0 makes a message claimable again at once.
    held = []
    while claimed < messages and (batch := await q.claim(limit=_BATCH, lease="10m")):
        claimed += len(batch)
        held.append(batch)
    assert claimed == messages
    for batch in held:
        results += await q.nack(batch)
    delays = [each.retry_at - clock.now_ms() for each in results if each.retry_at is not None]
    assert len(delays) == messages
    return delays


def check_uniform(values: Sequence[float], bound: float, what: str) -> None:
    """Assert that a sample is uniform in [0, bound), by the test of Kolmogorov and Smirnov."""
    assert 0 <= min(values) <= max(values) < bound, what
    distance = distance_from_uniform(values, bound)
    assert distance <= _KOLMOGOROV / math.sqrt(len(values)), f"{what}: {distance:.4f} from uniform in [0, {bound})"


def distance_from_uniform(values: Sequence[float], bound: float) -> float:
    """Return the largest difference between the distribution of a sample and the uniform one.

    The values are whole numbers in [0, bound), or any numbers in [0, 1) if `bound` is 1.
    """
    step = 1 if bound > 1 else 0
    number = len(values)
    return max(
        max((at + 1) / number - (value + step) / bound, value / bound - at / number)
        for at, value in enumerate(sorted(values))
    )
