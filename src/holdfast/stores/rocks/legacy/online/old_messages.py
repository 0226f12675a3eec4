"""The messages that are still in the old layout, as calls need them.

Each call first moves the messages that it may need, and is then carried out on the new layout alone. A claim moves the
next due messages, a look-up its message, a listing the messages of its page.
"""

from functools import partial

from holdfast.clock import Timer
from holdfast.model.answers import Counts
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import DEFAULT_PRIORITY
from holdfast.runtime import Runtime, Ticket, shield, yield_to_others
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.counters import Totals
from holdfast.stores.rocks.legacy.message_import import LEGACY_QUEUE
from holdfast.stores.rocks.legacy.online.legacy_counts import LegacyCounts, count_messages
from holdfast.stores.rocks.legacy.online.legacy_source import LegacySource, OldMessage, Phase
from holdfast.stores.rocks.legacy.online.message_moves import THREAD, Choice, MessageMoves
from holdfast.stores.rocks.shard import Shard

# Messages in one step of the move: a step takes a few milliseconds.
STEP = 100
# Messages that a claim moves at least, so that the next claims need not move any.
CLAIM_STEP = 100
# Moved messages that the old database may still have. Further moves wait: they are in memory, and have records.
_MAX_WAITING = 10_000


class OldMessages:
    """The messages that are not moved yet, for calls that need some of them. `LegacyMover` moves the others."""

    def __init__(
        self, shard: Shard, source: LegacySource, runtime: Runtime, room: DiskRoom, moves: MessageMoves
    ) -> None:
        self._shard = shard
        self._source = source
        self._runtime = runtime
        self._room = room
        self._moves = moves
        self._clock = runtime.clock
        self._is_closed = False
        # The old database has nothing more: calls need not ask for it.
        self.is_done = False
        # The reason why the old database cannot be read or written, while it cannot.
        self.failure: str | None = None
        # Callers that wait for the next change of this object's state.
        self._waiting: list[Ticket[None]] = []
        self._timer: Timer | None = None
        self._is_counting = self._is_counted = self._has_leases = False
        # Moves that are not durable yet.
        self._under_way = 0

    @property
    def moved(self) -> int:
        """Return the number of messages moved since the move began."""
        return self._moves.state.moved

    @property
    def left(self) -> int:
        """Return the number of messages that are not moved: exact once they are counted, before that an estimate."""
        if self._is_counted and self._moves.counts is not None:
            return self._moves.counts.messages
        return 0 if self._source.phase is Phase.DONE else self._source.estimate_messages()

    # --- What calls need ---------------------------------------------------------------------------------------

    async def pull_for_claim(self, limit: int, now_ms: int) -> int:
        """Move the messages that a claim of up to `limit` may take. Return the number of messages moved.

        The new layout then has every message that comes before those that are not moved.
        """
        await self._prepared()
        moved = 0
        while not self.is_done:
            head = self._source.head()
            if self._has_before(head, limit, now_ms):
                break
            if head is not None and head.message.visible_at <= now_ms:
                # As many as the claim wants, in their order: whatever it takes is among them, or was moved before.
                wanted = max(limit, CLAIM_STEP)
                return moved + await self._pull(partial(self._source.take_visible, wanted, now_ms), now_ms)
            if self._source.phase is Phase.CLAIMED:
                moved += await self._pull(self._take_step, now_ms)
            elif self._under_way:
                # Messages that are being moved can be claimed once they are durable.
                await self._changed()
                moved += 1
                self._check()
            else:
                break
        return moved

    def next_at(self) -> int | None:
        """Return the instant from which a claim may find a message that is not moved yet; None if there is none."""
        head = None if self.is_done or not self._has_leases else self._source.head()
        return None if head is None else head.message.visible_at

    async def pull(self, ids: list[int], now_ms: int) -> None:
        """Move the messages with these ids, if they are not moved yet."""
        await self._prepared()
        wanted = [keys.id_bytes(id) for id in dict.fromkeys(ids)]
        if not self.is_done and any(self._source.find_old(id) is not None for id in wanted):
            await self._pull(lambda: [old for id in wanted if (old := self._source.find_old(id)) is not None], now_ms)

    async def pull_page(self, after: int | None, upto: int | None, now_ms: int) -> int:
        """Move some messages with ids above `after`, up to `upto`. Return their number, at least 1 if there is
        any.

        With `upto` None also those that get a new id, which is above every other.
        """
        await self._prepared()
        if self.is_done:
            return 0
        has_own = (await self._counted()).with_own_id > 0
        if has_own and not self.is_done:
            low = bytes(keys.ID_SIZE) if after is None else keys.id_bytes(after)
            high = None if upto is None else keys.id_bytes(upto)
            wanted = self._source.ids_between(low, high, STEP)
            if wanted:
                return await self._pull(
                    lambda: [old for id in wanted if (old := self._source.find_old(id)) is not None], now_ms
                )
        moved = 0
        while upto is None and not moved and self._source.phase is not Phase.DONE:
            moved = await self._pull(self._take_step, now_ms)
        return moved

    async def pull_all(self) -> None:
        """Return once every message is moved. Raise `StoreUnavailable` while that is not possible."""
        await self._prepared()
        while self._source.phase is not Phase.DONE:
            now_ms = self._clock.now_ms()
            self._room.check(now_ms)
            await self._pull(self._take_step, now_ms)
            await yield_to_others(self._runtime)

    async def counts(self, now_ms: int) -> Counts:
        """Return the exact counts of the messages that are not moved.

        The first call counts them all, on another thread. Claimed messages are moved before.
        """
        counts = await self._counted()
        if self.is_done:
            return Counts()
        head = self._source.head()
        # Messages that are being moved are neither here nor yet among the messages that claims can find.
        ready = [*self._moves.unpublished, *([] if head is None else [head.message.visible_at])]
        return counts.at(now_ms, min((at for at in ready if at <= now_ms), default=None))

    def totals(self) -> Totals:
        """Return the number and size of the messages that are not moved. Raise `StoreUnavailable` until they are
        counted."""
        counts = self._moves.counts
        if counts is None or not self._is_counted:
            raise StoreUnavailable(f"the messages of {self._source.path} are being counted for the quota: try again")
        return Totals(counts.messages, counts.bytes)

    def _has_before(self, head: OldMessage | None, limit: int, now_ms: int) -> bool:
        """Return whether the new layout has `limit` messages that a claim takes before `head`."""
        queue = self._shard.catalog.require(LEGACY_QUEUE)
        found = self._shard.peek(LEGACY_QUEUE, limit, now_ms)
        # Moved messages that are not durable yet cannot be claimed. The next move waits for them too.
        if len(found) < limit or not all(self._shard.publisher.is_published(queue, each) for each in found):
            return False
        if head is None:
            return True
        last = found[-1]
        if last.life.priority != DEFAULT_PRIORITY:
            return last.life.priority < DEFAULT_PRIORITY
        return (last.life.visible_at, keys.id_bytes(last.envelope.id)) <= head.position

    async def _pull(self, choose: Choice, now_ms: int) -> int:
        while self._moves.waiting > _MAX_WAITING and not self._is_closed:
            self._check()
            await self._changed()
        self._check()
        return 0 if self.is_done else await self._move(choose, now_ms)

    async def _move(self, choose: Choice, now_ms: int) -> int:
        self._under_way += 1
        try:
            return await self._moves.move(choose, now_ms)
        finally:
            self._under_way -= 1
            self._wake()

    def _take_step(self) -> list[OldMessage]:
        return self._source.take_next(STEP)

    async def _prepared(self) -> None:
        """Return once the leases of the old database are in memory."""
        while not self._has_leases:
            self._check()
            await self._changed()
        self._check()

    async def _counted(self) -> LegacyCounts:
        """Return the counts of what is not moved, and count it first if nobody has."""
        await self._prepared()
        while self._source.phase is Phase.CLAIMED:
            await self._pull(self._take_step, self._clock.now_ms())
        while not self._is_counted:
            if self.is_done:
                return LegacyCounts(0)
            if self._moves.counts is None:
                # It goes on if the caller is cancelled, because the cursors keep the old database open.
                await shield(self._runtime, self._count())
            else:
                self._check()
                await self._changed()
        assert self._moves.counts is not None
        return self._moves.counts

    async def _count(self) -> None:
        """Count the messages as of now on another thread. Moves in the meantime are counted out here."""
        if self.is_done or self._moves.counts is not None:
            return
        self._check()
        now_ms, source = self._clock.now_ms(), self._source
        ongoing, found = LegacyCounts(now_ms), LegacyCounts(now_ms)
        self._moves.counts, self._is_counting = ongoing, True
        cursors, excluded = source.cursors(), frozenset(source.moved)
        try:
            await self._runtime.offload_long(
                lambda: count_messages(cursors, source.order, excluded, found, lambda: self._is_closed),
                thread=THREAD + 1,
            )
            self._check()
            ongoing.plus(found)
            self._is_counted = True
        finally:
            if not self._is_counted:
                self._moves.counts = None
            cursors.clear()  # they keep the database open
            self._is_counting = False
            self._wake()

    def _check(self) -> None:
        """Raise `StoreUnavailable` if the move has stopped."""
        self._shard.engine.check()
        if self._is_closed:
            raise StoreUnavailable("this store was closed: open it again")
        if self.failure is not None:
            raise StoreUnavailable(
                f"{self._source.path} cannot be used: {self.failure}; its messages cannot be served until it can",
                path=str(self._source.path),
            )

    # --- Waiting -----------------------------------------------------------------------------------------------

    async def _changed(self) -> None:
        ticket = self._runtime.ticket()
        self._waiting.append(ticket)
        await ticket

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            if not ticket.done():
                ticket.set_result(None)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
