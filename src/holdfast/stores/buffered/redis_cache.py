"""Redis, where servers find what others have buffered. A cache: it may lose everything, or vanish, at any instant.

After a failed call nobody asks for a while, but for a look now and then whether it is back.
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
from holdfast.stores.buffered.log.wal import WalPosition
from holdfast.stores.buffered.redis_keys import (
    barred_key,
    buffer_key,
    entry_of,
    field_of,
    handed_key,
    place_of,
    reserved_key,
)
from holdfast.stores.reserved_message import Reserved

T = TypeVar("T")

_log = logging.getLogger("holdfast")

_WAIT_S = 1.0
_LOOK_MS = 200
# Nobody needs a buffer that nobody wrote to for so long; a queue is barred until every server has seen it deleted.
_BUFFER_MS = 24 * 3_600_000
_BARRED_MS = 60_000
# Lua cannot hand more values to one command.
_FIELDS = 2_000

# A deleted queue takes nothing; a buffer goes by itself in the end.
_PUSH = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

# How long a reservation holds, by Redis' clock.
_RESERVED_MS = 1_000

# What is buffered of a queue; if nothing is, the first of its reserved messages: of the numbers that are asked for,
# which rise, the highest that there are. Then also what was handed out before, how many are left, and the last that was
# reserved.
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

# Behind the last that was reserved, if that is still the one which these were found behind.
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
    """What a claim found of its queue. Something buffered: that comes first, and nothing was popped."""

    held: list[Held]
    # As Redis has them: what was popped, and what had been before.
    mine: list[bytes]
    others: list[bytes]
    # Still reserved, and the last that was; empty: nothing is.
    left: int
    last: bytes


NOTHING = Popped([], [], [], 0, b"")


class Cache:
    """All of it runs on the driver's loop."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._clock = clock
        self._why = ""
        self._is_ending = asyncio.Event()
        self._redis: Redis = Redis.from_url(
            url,
            socket_timeout=_WAIT_S,
            socket_connect_timeout=_WAIT_S,
            # Once more, on a new connection: the one before may have died with an earlier Redis.
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[ConnectionError],
        )

    @property
    def is_up(self) -> bool:
        return not self._why

    def check(self) -> None:
        if self._why:
            raise StoreUnavailable(f"Redis is down, and on_redis_down is `fail`: {self._why}")

    async def push(self, held: dict[QueueRef, list[Held]]) -> set[QueueRef]:
        """Answers the queues that take nothing any more. `StoreUnavailable`."""

        async def push() -> set[QueueRef]:
            asked: list[QueueRef] = []
            async with self._redis.pipeline(transaction=False) as pipeline:
                for ref, calls in held.items():
                    keys = [buffer_key(ref), barred_key(ref)]
                    for at in range(0, len(calls), _FIELDS):
                        fields = [part for place, body in calls[at : at + _FIELDS] for part in (field_of(place), body)]
                        # By its text: by its digest, a Redis that was restarted would not know it.
                        pipeline.eval(_PUSH, len(keys), *keys, _BUFFER_MS, *fields)
                        asked.append(ref)
                answers = await pipeline.execute()
            return {ref for ref, took in zip(asked, answers, strict=True) if not took}

        return await self._ask(push)

    async def held(self, ref: QueueRef) -> list[Held]:
        """What is buffered of a queue, by whichever server."""

        async def read() -> list[Held]:
            found: dict[bytes, bytes] = await _awaited(self._redis.hgetall(buffer_key(ref)))
            return _held(found.items())

        return await self._ask(read)

    async def remove(self, landed: dict[QueueRef, list[WalPosition]]) -> None:
        """After the commit. What stays here, because Redis is away, is known by its place to have landed."""
        if not self.is_up or not landed:
            return

        async def remove() -> None:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for ref, places in landed.items():
                    for at in range(0, len(places), _FIELDS):
                        pipeline.hdel(buffer_key(ref), *(field_of(place) for place in places[at : at + _FIELDS]))
                await pipeline.execute()

        try:
            await self._ask(remove)
        except StoreUnavailable as error:
            _log.debug("what has landed stays in Redis: %s", error.message)

    # --- What is reserved ----------------------------------------------------------------------------------------

    async def pop(self, ref: QueueRef, numbers: list[int], remembered: int) -> Popped:
        """The highest of these numbers, which rise, that there are. `remembered`: how many of those that were popped
        are told to the others."""

        async def pop() -> Popped:
            keys = buffer_key(ref), reserved_key(ref), handed_key(ref)
            held, *rest = await _awaited(self._redis.eval(_POP, 3, *keys, remembered, _RESERVED_MS, *numbers))
            if held:
                return NOTHING._replace(held=_held(zip(held[::2], held[1::2], strict=True)))
            return Popped([], *rest)

        return await self._ask(pop)

    async def reserve(self, ref: QueueRef, reserved: list[Reserved], behind: bytes) -> int:
        """Answers how many. None if another server was first."""

        async def push() -> int:
            entries = [entry_of(each) for each in reserved]
            number: int = await _awaited(
                self._redis.eval(_RESERVE, 2, reserved_key(ref), handed_key(ref), behind, _RESERVED_MS, *entries)
            )
            return number

        return await self._ask(push)

    async def drop(self, ref: QueueRef) -> None:
        """Nothing is reserved any more. If Redis is away, that is so within a second."""

        async def drop() -> None:
            await self._redis.delete(reserved_key(ref), handed_key(ref))

        try:
            await self._ask(drop)
        except StoreUnavailable as error:
            _log.debug("what was reserved stays so for a moment: %s", error.message)

    async def bar(self, ref: QueueRef) -> None:
        """From now on no server's fast path takes a message for this queue."""

        async def bar() -> None:
            await self._redis.set(barred_key(ref), 1, px=_BARRED_MS)

        await self._ask(bar)

    async def watch(self) -> None:
        """Until `end`: notice when it goes, and when it is back."""
        # By an event, for the driver may swallow a cancellation.
        while not self._is_ending.is_set():
            if not await wait_for_event(self._clock, self._is_ending, _LOOK_MS):
                await self.look()

    def end(self) -> None:
        self._is_ending.set()

    async def look(self) -> None:
        was_up = self.is_up
        try:
            await _awaited(self._redis.ping())
        except Exception as error:  # whatever it is, the next look must come
            self._lost(error)
            return
        self._why = ""
        if not was_up:
            _log.warning("Redis is back")

    async def close(self) -> None:
        await self._redis.aclose()

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        except (RedisError, OSError, TimeoutError) as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> StoreUnavailable:
        why = str(error) or type(error).__name__
        if not self._why:
            _log.warning("Redis does not answer: %s", why)
        self._why = why
        return StoreUnavailable(f"Redis failed in the middle of a call: {why}")


def _held(found: Iterable[tuple[bytes, bytes]]) -> list[Held]:
    return [(place, body) for field, body in found if (place := place_of(field)) is not None]


async def _awaited(answer: Any) -> Any:
    """The driver's types say that an answer may be there already."""
    return await answer
