"""Redis, where servers find the messages that other servers have buffered.

It is a cache: it may lose everything or vanish at any instant. After a failed call, calls are refused until a regular
check finds Redis again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from holdfast.background import wait_for_event
from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.buffered.log.replay import WalPosition
from holdfast.stores.buffered.redis_keys import (
    barred_key,
    buffer_key,
    decode_position,
    encode_position,
    encode_reserved,
    handed_key,
    reserved_key,
)
from holdfast.stores.reserved_message import Reserved

T = TypeVar("T")

_log = logging.getLogger("holdfast")

_WAIT_S = 1.0
_LOOK_MS = 200
# A buffer without a write for this long is stale. A queue stays barred until every server has seen that it is deleted.
_BUFFER_MS = 24 * 3_600_000
_BARRED_MS = 60_000
# Lua cannot hand more values to one command.
_FIELDS = 2_000

# A deleted queue takes nothing. A buffer expires by itself.
_PUSH = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

# How long a reservation lasts, by the clock of Redis.
_RESERVED_MS = 1_000

# Return the buffered calls of a queue. If there are none, pop the first reserved messages: of the numbers asked for,
# which rise, the highest that are available. Then return also the entries popped before, the number that remain, and
# the last entry that was reserved.
_POP = """
local held = redis.call('HGETALL', KEYS[1])
if #held > 0 then return {held} end
local time = redis.call('TIME')
local mine = redis.call('LRANGE', KEYS[2], 0, ARGV[#ARGV] - 1)
if #mine > 0 and tonumber(string.match(mine[1], '^%d+')) <= time[1] * 1000 + math.floor(time[2] / 1000) then
    redis.call('DEL', KEYS[2], KEYS[3])
    mine = {}
end
local number = 0
for at = 3, #ARGV do
    if tonumber(ARGV[at]) > #mine then break end
    number = tonumber(ARGV[at])
end
mine = {unpack(mine, 1, number)}
local others = redis.call('LRANGE', KEYS[3], 0, -1)
if number > 0 then
    redis.call('LTRIM', KEYS[2], number, -1)
    redis.call('RPUSH', KEYS[3], unpack(mine))
    redis.call('LTRIM', KEYS[3], -tonumber(ARGV[1]), -1)
    redis.call('PEXPIRE', KEYS[3], ARGV[2])
end
local last = redis.call('LINDEX', KEYS[2], -1) or redis.call('LINDEX', KEYS[3], -1) or ''
return {held, mine, others, redis.call('LLEN', KEYS[2]), last}
"""

# Add entries after the last reserved one, if it is still the entry after which they were found.
_RESERVE = """
if (redis.call('LINDEX', KEYS[1], -1) or redis.call('LINDEX', KEYS[2], -1) or '') ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local ends = string.format('%d|', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2])
for at = 3, #ARGV do redis.call('RPUSH', KEYS[1], ends .. ARGV[at]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return #ARGV - 2
"""

Held = tuple[WalPosition, bytes]


class Popped(NamedTuple):
    """The result of a pop. If the queue has buffered calls, those come first and nothing was popped."""

    held: list[Held]
    # Entries as Redis has them: those popped now, and those popped before.
    mine: list[bytes]
    others: list[bytes]
    # How many are still reserved, and the last entry that was reserved; empty if there is none.
    left: int
    last: bytes


NOTHING = Popped([], [], [], 0, b"")


class Cache:
    """The calls of Redis. It runs on the driver's loop."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._clock = clock
        self._failure = ""
        self._is_ending = asyncio.Event()
        self._redis: Redis = Redis.from_url(
            url,
            socket_timeout=_WAIT_S,
            socket_connect_timeout=_WAIT_S,
            # Retry once, on a new connection: the previous one may have died with an earlier Redis.
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[ConnectionError],
        )

    @property
    def is_up(self) -> bool:
        """Return whether the last call of Redis succeeded."""
        return not self._failure

    def check(self) -> None:
        """Raise `StoreUnavailable` while Redis is down."""
        if self._failure:
            raise StoreUnavailable(
                f"Redis is down and on_redis_down is `fail`: {self._failure}; try again once Redis is back"
            )

    async def push(self, held: dict[QueueRef, list[Held]]) -> set[QueueRef]:
        """Add buffered calls. Return the queues that take no calls because they are being deleted. Raise
        `StoreUnavailable`."""

        async def push() -> set[QueueRef]:
            asked: list[QueueRef] = []
            async with self._redis.pipeline(transaction=False) as pipeline:
                for ref, calls in held.items():
                    keys = [buffer_key(ref), barred_key(ref)]
                    for at in range(0, len(calls), _FIELDS):
                        fields = [
                            part
                            for position, body in calls[at : at + _FIELDS]
                            for part in (encode_position(position), body)
                        ]
                        # Sent as text: a restarted Redis would not know the script by its digest.
                        pipeline.eval(_PUSH, len(keys), *keys, _BUFFER_MS, *fields)
                        asked.append(ref)
                answers = await pipeline.execute()
            return {ref for ref, took in zip(asked, answers, strict=True) if not took}

        return await self._call(push)

    async def held(self, ref: QueueRef) -> list[Held]:
        """Return the calls that any server has buffered for a queue."""

        async def read() -> list[Held]:
            found: dict[bytes, bytes] = await _awaited(self._redis.hgetall(buffer_key(ref)))
            return _decode_held(found.items())

        return await self._call(read)

    async def remove(self, landed: dict[QueueRef, list[WalPosition]]) -> None:
        """Remove calls that have landed. If Redis is down they stay; later readers know from their positions that they
        have landed."""
        if not self.is_up or not landed:
            return

        async def remove() -> None:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for ref, positions in landed.items():
                    for at in range(0, len(positions), _FIELDS):
                        pipeline.hdel(
                            buffer_key(ref), *(encode_position(position) for position in positions[at : at + _FIELDS])
                        )
                await pipeline.execute()

        try:
            await self._call(remove)
        except StoreUnavailable as error:
            _log.debug("landed_calls_not_removed error=%s", error.message)

    # --- Reservations ----------------------------------------------------------------------------------------

    async def pop(self, ref: QueueRef, numbers: list[int], remembered: int) -> Popped:
        """Pop reserved messages: the highest of `numbers`, which rise, that the reservation has enough for.
        `remembered` is the number of popped entries that Redis remembers for other claims."""

        async def pop() -> Popped:
            keys = buffer_key(ref), reserved_key(ref), handed_key(ref)
            held, *rest = await _awaited(self._redis.eval(_POP, 3, *keys, remembered, _RESERVED_MS, *numbers))
            if held:
                return NOTHING._replace(held=_decode_held(zip(held[::2], held[1::2], strict=True)))
            return Popped([], *rest)

        return await self._call(pop)

    async def reserve(self, ref: QueueRef, reserved: list[Reserved], behind: bytes) -> int:
        """Add messages to the reservation after the entry `behind`, and return how many. It is 0 if another server was
        first."""

        async def push() -> int:
            entries = [encode_reserved(each) for each in reserved]
            number: int = await _awaited(
                self._redis.eval(_RESERVE, 2, reserved_key(ref), handed_key(ref), behind, _RESERVED_MS, *entries)
            )
            return number

        return await self._call(push)

    async def drop(self, ref: QueueRef) -> None:
        """Drop the reservation of a queue. If Redis is down, the reservation ends by itself within a second."""

        async def drop() -> None:
            await self._redis.delete(reserved_key(ref), handed_key(ref))

        try:
            await self._call(drop)
        except StoreUnavailable as error:
            _log.debug("reservation_not_dropped error=%s: it ends by itself", error.message)

    async def block_queue(self, ref: QueueRef) -> None:
        """Stop every server's fast path from taking messages for this queue."""

        async def block() -> None:
            await self._redis.set(barred_key(ref), 1, px=_BARRED_MS)

        await self._call(block)

    async def run(self) -> None:
        """Check regularly whether Redis is up, until `end`."""
        # An event ends the loop, because the driver may swallow a cancellation.
        while not self._is_ending.is_set():
            if not await wait_for_event(self._clock, self._is_ending, _LOOK_MS):
                await self.check_once()

    def end(self) -> None:
        """End `run`."""
        self._is_ending.set()

    async def check_once(self) -> None:
        """Check whether Redis is up, and log a change."""
        was_up = self.is_up
        try:
            await _awaited(self._redis.ping())
        except Exception as error:  # any error: the loop must go on
            self._mark_down(error)
            return
        self._failure = ""
        if not was_up:
            _log.warning("redis_up")

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        except (RedisError, OSError, TimeoutError) as error:
            raise self._mark_down(error) from error

    def _mark_down(self, error: BaseException) -> StoreUnavailable:
        failure = str(error) or type(error).__name__
        if not self._failure:
            _log.warning("redis_down error=%s", failure, extra={"error": failure})
        self._failure = failure
        return StoreUnavailable(f"Redis failed in the middle of a call: {failure}")


def _decode_held(found: Iterable[tuple[bytes, bytes]]) -> list[Held]:
    return [(position, body) for field, body in found if (position := decode_position(field)) is not None]


async def _awaited(answer: Any) -> Any:
    """Await the response. The types of the driver allow a response without waiting."""
    return await answer
