"""The token buckets that servers share, in Redis.

    holdfast:rate:{tenant}    hash: `:limit` of the tenant, `queue:limit` of a queue -> level, at, rate, capacity
    holdfast:servers          sorted set: the servers that share the buckets, by the time of their last announcement

One script changes the hash of a tenant. It equals `TokenBucket` of model/limits.py; a test compares the two
(tests/service/test_shared_buckets.py). The time is that of Redis, so that the servers' clocks do not matter.

How to change this format: use another name for the hash: buckets fill up again by themselves, so nothing is migrated.
While servers of both versions run, each version applies the limits by itself.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from holdfast.model.limits import CLOSED_MS, ROUNDING, Charge
from holdfast.model.names import QueueRef
from holdfast.model.parsing.durations import MAX_MS

T = TypeVar("T")

# The maximum time for which a call that needs admission waits for Redis.
_WAIT_S = 0.5
# A bucket that was not used for this time is removed, as if it were full.
_KEPT_MS = 7 * 86_400_000
# A server counts for this time after its last announcement.
ALIVE_MS = 15_000

_SERVERS = "holdfast:servers"

_NOW = """
local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
"""

_TAKE = (
    _NOW
    + """
local asked = cjson.decode(ARGV[2])
local closed_ms, max_ms, kept_ms, tolerance = unpack(asked.constants)
local buckets, fields = {}, {}

local function filled(level, at, per_s, capacity)
    if now > at then return math.min(capacity, level + (now - at) * per_s / 1000), now end
    return level, at
end

local function bucket(charge)
    local field, per_s, capacity = charge[1], charge[2], charge[3]
    local found = buckets[field]
    if found then return found end
    found = {level = capacity, at = now, per_s = per_s, capacity = capacity}
    local kept = redis.call('HGET', KEYS[1], field)
    if kept then
        local level, at, was_per_s, was_capacity = string.match(kept, '(%S+) (%S+) (%S+) (%S+)')
        found.level, found.at = filled(tonumber(level), tonumber(at), tonumber(was_per_s), tonumber(was_capacity))
        found.level = math.min(found.level, capacity)
    end
    found.rounding = tolerance * math.max(1, capacity)
    buckets[field] = found
    fields[#fields + 1] = field
    return found
end

local function shortage_ms(found, amount)
    local wanted = amount
    if found.capacity > 0 then wanted = math.min(amount, found.capacity) end
    local missing = wanted - found.level
    if missing <= found.rounding then return 0 end
    if found.per_s == 0 then return closed_ms end
    return math.max(1, math.ceil(math.min((missing - found.rounding) / found.per_s * 1000, max_ms)))
end

for _, charge in ipairs(asked.adjust) do
    local found = bucket(charge)
    found.level = math.min(found.capacity, found.level - charge[4])
end

local answers = {}
for number, charges in ipairs(asked.requests) do
    local longest, which = 0, 0
    for index, charge in ipairs(charges) do
        local wait = shortage_ms(bucket(charge), charge[4])
        if wait > longest then longest, which = wait, index end
    end
    if longest == 0 then
        for _, charge in ipairs(charges) do
            local found = bucket(charge)
            found.level = found.level - charge[4]
        end
    end
    answers[number] = string.format('%.0f %d', longest, which)
end

for _, charge in ipairs(asked.blocks) do
    local found = bucket(charge)
    local given = math.max(0, math.floor(math.min(charge[4], found.level)))
    found.level = found.level - given
    answers[#answers + 1] = string.format('%.0f', given)
end

local longest = redis.call('PTTL', KEYS[1])
for _, field in ipairs(fields) do
    local found = buckets[field]
    if found.level >= found.capacity - found.rounding then
        redis.call('HDEL', KEYS[1], field)
    else
        local kept = string.format('%.17g %.0f %.17g %.17g', found.level, found.at, found.per_s, found.capacity)
        redis.call('HSET', KEYS[1], field, kept)
        local fills_ms = kept_ms
        if found.per_s > 0 then
            fills_ms = math.min(kept_ms, math.ceil((found.capacity - found.level) / found.per_s * 1000) + 1000)
        end
        longest = math.max(longest, fills_ms)
    end
end
if longest > 0 then redis.call('PEXPIRE', KEYS[1], string.format('%.0f', longest)) end
return answers
"""
)

_ANNOUNCE = (
    _NOW
    + """
redis.call('ZADD', KEYS[1], now, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[3]))
redis.call('PEXPIRE', KEYS[1], 10 * tonumber(ARGV[3]))
return redis.call('ZCARD', KEYS[1])
"""
)


class RatesDown(Exception):
    """Redis is not reachable, or did not respond in time."""


class TokensTaken(NamedTuple):
    """The result of `RedisRates.take`.

    Attributes:
        waits: For each request, the milliseconds until its tokens are there and the position (from 1) of the charge
            that takes longest; 0 and 0 if the tokens were taken.
        blocks: For each block, the number of tokens taken.
    """

    waits: list[tuple[int, int]]
    blocks: list[int]


class RedisRates:
    """A client of the shared buckets, for use on an event loop.

    With `goes_by_caller`, which is for tests, the time is that of the callers instead of Redis'.
    """

    def __init__(self, url: str, *, goes_by_caller: bool = False) -> None:
        self._goes_by_caller = goes_by_caller
        self._redis: Redis = Redis.from_url(
            url,
            socket_timeout=_WAIT_S,
            socket_connect_timeout=_WAIT_S,
            # Retry once on a new connection, because Redis may have been restarted since the last call.
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[ConnectionError],
        )
        self._take = self._redis.register_script(_TAKE)
        self._announce = self._redis.register_script(_ANNOUNCE)

    async def take(
        self,
        tenant: str,
        adjust: Sequence[Charge],
        requests: Sequence[Sequence[Charge]],
        blocks: Sequence[Charge],
        now_ms: int,
    ) -> TokensTaken:
        """Change the buckets of a tenant in one atomic step. Raise `RatesDown` if Redis fails.

        Args:
            adjust: Tokens to take even into debt, or to return if the amount is negative. They come first.
            requests: The charges of calls; those of each call are taken together or not at all.
            blocks: Tokens to reserve, as far as there are any left.
            now_ms: The time, which is used with `goes_by_caller` only.
        """
        asked = {
            "constants": [CLOSED_MS, MAX_MS, _KEPT_MS, ROUNDING],
            "adjust": [_encode(each) for each in adjust],
            "requests": [[_encode(each) for each in request] for request in requests],
            "blocks": [_encode(each) for each in blocks],
        }
        results: list[bytes] = await self._ask(
            lambda: self._take(keys=[f"holdfast:rate:{tenant}"], args=[self._now(now_ms), json.dumps(asked)])
        )
        waits = [each.split() for each in results[: len(requests)]]
        return TokensTaken(
            [(int(wait), int(position)) for wait, position in waits], [int(each) for each in results[len(requests) :]]
        )

    async def announce(self, server: str, now_ms: int) -> int:
        """Announce this server, and return the number of servers. Raise `RatesDown` if Redis fails."""
        servers: int = await self._ask(
            lambda: self._announce(keys=[_SERVERS], args=[self._now(now_ms), server, ALIVE_MS])
        )
        return servers

    async def leave(self, server: str) -> None:
        """Remove this server from the announced ones, and close the connection."""

        async def leave() -> None:
            await self._redis.zrem(_SERVERS, server)

        with suppress(RatesDown):  # the announcement expires by itself
            await self._ask(leave)
        await self._redis.aclose()

    def _now(self, now_ms: int) -> int | str:
        return now_ms if self._goes_by_caller else ""

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        except (RedisError, OSError, TimeoutError) as error:
            raise RatesDown(str(error) or type(error).__name__) from error


def _encode(charge: Charge) -> list[Any]:
    owner = charge.owner
    queue = owner.queue if isinstance(owner, QueueRef) else ""
    return [f"{queue}:{charge.limit}", charge.per_s, charge.capacity, charge.amount]
