"""Group commit: all calls that wait at a moment share one write and one sync of the log, and one call of Redis.

Redis is asked side by side with the disk. A call is answered once the log has it on disk; one that Redis did not take
is voided in the log first, if it is to be refused, so that a refusal means that nothing is stored.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.background import Backoff, sleep_for, wait_for_event
from holdfast.clock import Clock
from holdfast.model.answers import Enqueued
from holdfast.model.errors import HoldfastError, Internal, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.runtime import Ticket
from holdfast.stores.buffered.buffer import Buffer, Waiting
from holdfast.stores.buffered.log.records import record_size
from holdfast.stores.buffered.log.wal import Wal
from holdfast.stores.buffered.redis_cache import Cache, Held
from holdfast.stores.formats.logged_enqueue import LoggedCall, encode_call, log_call

T = TypeVar("T")

_log = logging.getLogger("holdfast")

_CALLS = 2_000
_BYTES = 4 << 20
# Callers wait: the first pause after an error is short.
_FIRST_PAUSE_MS = 10


class Offer(NamedTuple):
    """A call that waits; answered None if it is to go to the store directly."""

    ref: QueueRef
    drafts: list[Draft]
    now_ms: int
    lane: int
    queue_id: int
    default_ttl_ms: int | None
    ticket: Ticket[list[Enqueued] | None]


class Peers(Protocol):
    """What a server shares with the others."""

    def take_ids(self, number: int, stored_ms: int) -> list[int]: ...
    def stored_ms(self, lane: int, now_ms: int) -> int: ...

    def ring(self, ready: dict[QueueRef, int]) -> None:
        """Other servers' waiters can look, from these times on."""


class _Stamped(NamedTuple):
    offer: Offer
    place: int
    call: LoggedCall
    body: bytes


class GroupCommit:
    """On the driver's loop, but for the log's own calls, which have a thread."""

    def __init__(
        self,
        wal: Wal,
        cache: Cache,
        buffer: Buffer,
        peers: Peers,
        thread: Executor,
        answer: Callable[[list[tuple[Offer, Any]]], None],
        clock: Clock,
        *,
        needs_redis: bool,
        tells_kept_ms: int | None = None,
    ) -> None:
        self._wal = wal
        self._cache = cache
        self._buffer = buffer
        self._peers = peers
        self._thread = thread
        # Given each call with its answer, or the error that it is to raise.
        self._answer = answer
        self._needs_redis = needs_redis
        # Where others read the log: after so long without a call it tells them that the last ones were kept.
        self._clock = clock
        self._tells_kept_ms = tells_kept_ms
        self._is_told = True
        self._offers: deque[Offer] = deque()
        self._wanted = asyncio.Event()
        self._is_ending = False

    def add(self, offer: Offer) -> None:
        if self._is_ending:
            self._answer([(offer, None)])
            return
        self._offers.append(offer)
        self._wanted.set()

    async def run(self) -> None:
        """Until `end`, and until nobody waits."""
        backoff = Backoff("commits", first_ms=_FIRST_PAUSE_MS)
        while not self._is_ending or self._offers:
            try:
                await self._some()
                self._wanted.clear()
                while self._offers:
                    await self.commit_once()
            except Exception as error:  # callers wait for this loop: it must not end before `end`
                await sleep_for(self._clock, backoff.failed(error))
                self._wanted.set()
            else:
                backoff.succeeded()
        await self.tell_kept()

    async def _some(self) -> None:
        kept_ms = None if self._is_told else self._tells_kept_ms
        if kept_ms is not None and not await wait_for_event(self._clock, self._wanted, kept_ms):
            await self.tell_kept()
        await self._wanted.wait()

    async def tell_kept(self) -> None:
        """Record in the log, for its readers, that its end was kept. The next group would do so too, but there is none.

        It never raises: the next call reports a full disk or a failed log.
        """
        if self._tells_kept_ms is None or self._is_told:
            return
        self._is_told = True
        try:
            await self._on_thread(lambda: self._wal.void([]))
        except StoreUnavailable as error:
            _log.debug("log_end_not_recorded error=%s", error.message, extra={"error": error.message})
        except Exception as error:  # callers wait for this loop, so it goes on, but nobody else would report this
            _log.warning("log_end_not_recorded error=%s", error, exc_info=True, extra={"error": str(error)})

    def end(self) -> None:
        self._is_ending = True
        self._wanted.set()

    async def commit_once(self) -> int:
        """One group; answers how many calls it answered. One after the other: so what is buffered comes in the order of
        its places."""
        offers = self._take()
        try:
            await self._commit(offers)
        except HoldfastError as error:
            self._answer([(offer, error) for offer in offers])
        except Exception as error:
            failure = Internal(f"the log could not be written: {error}")
            failure.__cause__ = error
            self._answer([(offer, failure) for offer in offers])
        return len(offers)

    def _take(self) -> list[Offer]:
        offers: list[Offer] = []
        size = 0
        while self._offers and len(offers) < _CALLS and size < _BYTES:
            offers.append(self._offers.popleft())
            size += sum(draft.bytes for draft in offers[-1].drafts)
        return offers

    async def _commit(self, offers: list[Offer]) -> None:
        calls = self._calls(offers)
        bodies = [encode_call(call) for call in calls]
        size = sum(map(record_size, bodies))
        if not self._wal.has_room(size):
            await self._on_thread(lambda: self._wal.make_room(size))
        stamped = []
        for offer, call, body in zip(offers, calls, bodies, strict=True):
            [place] = self._wal.places(offer.lane, 1)
            stamped.append(_Stamped(offer, place, call, body))
        records = [(each.offer.lane, each.place, each.body) for each in stamped]
        written = self._on_thread(lambda: self._wal.append(records))
        segment, pushed = await asyncio.gather(written, self._push(stamped), return_exceptions=True)
        if isinstance(segment, BaseException):
            raise segment
        self._is_told = False
        is_refused = isinstance(pushed, BaseException) and self._needs_redis
        barred: set[QueueRef] = pushed if isinstance(pushed, set) else set()
        void = stamped if is_refused else [each for each in stamped if each.offer.ref in barred]
        if void:
            await self._on_thread(lambda: self._wal.void([(each.offer.lane, each.place) for each in void]))
            self._is_told = True
            # They are counted as waiting; they are not, any more.
            self._wal.landed([segment] * len(void))
            if is_refused:
                # Redis may have taken them all the same, and another server would find them there.
                await self._buffer.forgo([self._wal.place(each.offer.lane, each.place) for each in void])
        kept = [] if is_refused else [each for each in stamped if each.offer.ref not in barred]
        self._buffer.add(
            [Waiting(self._wal.place(each.offer.lane, each.place), segment, each.call, len(each.body)) for each in kept]
        )
        ready: dict[QueueRef, int] = {}
        for each in kept:
            at_ms = min(message.visible_at for message in each.call.messages)
            ready[each.offer.ref] = min(at_ms, ready.get(each.offer.ref, at_ms))
        self._peers.ring(ready)
        answers: list[tuple[Offer, Any]] = [(each.offer, _enqueued(each)) for each in kept]
        answers += [(each.offer, pushed if is_refused else None) for each in void]
        self._answer(answers)

    def _calls(self, offers: list[Offer]) -> list[LoggedCall]:
        calls = []
        for ref, drafts, now_ms, lane, queue_id, default_ttl_ms, _ in offers:
            stored_ms = self._peers.stored_ms(lane, now_ms)
            ids = self._peers.take_ids(len(drafts), stored_ms)
            calls.append(log_call(ref, queue_id, drafts, ids, stored_ms, default_ttl_ms))
        return calls

    async def _push(self, stamped: list[_Stamped]) -> set[QueueRef]:
        held: defaultdict[QueueRef, list[Held]] = defaultdict(list)
        for each in stamped:
            held[each.offer.ref].append((self._wal.place(each.offer.lane, each.place), each.body))
        try:
            return await self._cache.push(held)
        except HoldfastError:
            raise
        except Exception as error:
            # Whatever it is, what is in the log has to be kept or voided.
            raise StoreUnavailable(f"Redis could not be asked: {error}") from error

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _enqueued(stamped: _Stamped) -> list[Enqueued]:
    return [
        Enqueued(snowflake=message.id, given_correlation_id=message.correlation_id, duplicate=False)
        for message in stamped.call.messages
    ]
