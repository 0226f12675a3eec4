"""The embedded store in a directory whose messages of the legacy layout are being moved.

It is a `RocksStore` in every other respect. Calls that concern old messages first have the `LegacyMover` move them.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.dice import Dice
from holdfast.model.answers import Counts, Enqueued, Found
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Filter, Verb, states_of
from holdfast.runtime import Runtime, shield
from holdfast.stores.contract import Listener
from holdfast.stores.rocks.directory.counters import Totals
from holdfast.stores.rocks.legacy.message_import import LEGACY_QUEUE
from holdfast.stores.rocks.legacy.online.adoption import adopt, remove_legacy_files
from holdfast.stores.rocks.legacy.online.legacy_source import LegacySource
from holdfast.stores.rocks.legacy.online.message_moves import THREAD, MessageMoves
from holdfast.stores.rocks.legacy.online.move_records import MoveRecords, MoveState
from holdfast.stores.rocks.legacy.online.mover import LegacyMover
from holdfast.stores.rocks.recovery.layout import LEGACY, Opened, end_legacy
from holdfast.stores.rocks.shard import Shard
from holdfast.stores.rocks.store import RocksStore
from holdfast.stores.values import AlterStep, Claims, Listing
from holdfast.telemetry.figures import Figures

# The states that messages of the old layout can have.
_OLD_STATES = frozenset({State.READY, State.IN_FLIGHT})


class MovingStore(RocksStore):
    """A store into which messages of the legacy layout are moved while it is in use."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        dice: Dice,
        *,
        shards: int | None = None,
        accept_unreadable: int = 0,
        **options: Any,
    ) -> None:
        """Prepare a store as `RocksStore` does. `accept_unreadable` is the exact number of keys and values of the old
        database that cannot be read and are left out; they are kept in a file."""
        super().__init__(path, dice, shards=shards, **options)
        # A claim may wait for messages to be moved.
        self.capabilities = msgspec.structs.replace(self.capabilities, claims_inline=False)
        self._accepted = accept_unreadable
        self._source: LegacySource | None = None
        # None: the last message has been moved, or the store is not open.
        self._mover: LegacyMover | None = None

    # --- Opening and closing -----------------------------------------------------------------------------------

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        adopt(self._path, self._wanted_shards)
        await super().open(listener, runtime)
        try:
            if self._source is not None and self._mover is None:
                self._prepare_move(await self._router.choose(LEGACY_QUEUE), self._source)
            await self._start_move()
        except BaseException:
            await self.close()
            raise

    def _open(self, opened: Opened, listener: Listener, runtime: Runtime) -> None:
        super()._open(opened, listener, runtime)
        if self._layout.role.has_legacy:
            # The queue exists unless this is the first opening. Its shard then has the state of the move.
            shard = self._router.find(LEGACY_QUEUE)
            state = None if shard is None else MoveRecords(shard.engine).state()
            self._source = LegacySource(self._path / LEGACY, None if state is None else state.order)
            if shard is not None:
                # Before the first call after a reopening is served.
                self._prepare_move(shard, self._source)

    def _prepare_move(self, shard: Shard, source: LegacySource) -> None:
        state = MoveRecords(shard.engine).state()
        state = state or MoveState(order=str(source.order), begun_at=self._runtime.clock.now_ms())
        self._moves = MessageMoves(shard, source, self._runtime, self._dice, state)
        self._moves.read_records()
        shard.catalog.retained.add(LEGACY_QUEUE)
        self._router.tenants.outside = self._not_moved
        self._mover = LegacyMover(
            *(self._path, shard, source, self._runtime, self._disk_room, self._moves),
            accepted=self._accepted,
            on_moved=self._end_move,
        )

    async def _start_move(self) -> None:
        if self._mover is not None:
            await self._moves.begin(self._runtime.clock.now_ms())
            self._mover.start()

    async def _reopen(self) -> None:
        await self._stop_move()
        await super()._reopen()
        await self._start_move()

    async def close(self) -> None:
        await self._stop_move()
        await super().close()

    async def _stop_move(self) -> None:
        if self._mover is not None:
            await self._mover.close()

    def _drop_parts(self, failure: StoreUnavailable | None = None) -> None:
        self._mover = None
        self.__dict__.pop("_moves", None)
        self._close_source()
        super()._drop_parts(failure)

    async def _end_move(self) -> None:
        """Make the directory an ordinary store. The old database has nothing that may be taken for a message."""
        # Before the marker: whatever a crash leaves of these files, the next opening continues from here.
        remove_legacy_files(self._path)
        self._layout = end_legacy(self._layout, self.databases)
        self._router.tenants.outside = lambda tenant: Totals()
        for shard in self.shards:
            shard.catalog.retained.discard(LEGACY_QUEUE)
        self._mover = None
        self._close_source()
        legacy = self._path / LEGACY
        await self._runtime.offload_long(lambda: shutil.rmtree(legacy, ignore_errors=True), thread=THREAD)

    async def finish_move(self, report: Callable[[int], None]) -> tuple[int, int, list[str]]:
        """Return once everything is moved that can be: the number of messages moved in all, the number of keys that
        cannot be read, and some of them."""
        mover, moves = self._mover, self.__dict__.get("_moves")
        if mover is None or moves is None:
            return 0, 0, []
        await mover.run_to_end(report)
        return moves.state.moved, mover.unreadable or 0, mover.examples

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _not_moved(self, tenant: str) -> Totals:
        """Return the messages and bytes of a tenant that are still in the old layout."""
        if self._mover is None or tenant != LEGACY_QUEUE.tenant:
            return Totals()
        return self._mover.totals()

    def _mover_of(self, ref: QueueRef) -> LegacyMover | None:
        """Return the mover if calls on this queue need it."""
        return self._mover if ref == LEGACY_QUEUE and self._engine.failure is None else None

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        mover = self._mover
        if mover is not None and ref.tenant == LEGACY_QUEUE.tenant and self._router.tenants.has_quotas(ref.tenant):
            await mover.counts(now_ms)  # quotas need the exact number of old messages
        return await super().enqueue(ref, drafts, now_ms, auto_create=auto_create)

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        limit = sum(ask.limit for ask in asks)
        while (mover := self._mover_of(ref)) is not None and limit and self._is_claimable(ref):
            moved = await mover.pull_for_claim(limit, now_ms)
            claims = await super().claim(ref, asks, now_ms)
            # Other claims may have taken what this one has moved.
            if any(claims.per_ask) or claims.is_reread or not moved or asks[0].ledger is not None:
                return _until(claims, mover.next_at())
        claims = await super().claim(ref, asks, now_ms)
        return claims if mover is None or not self._is_claimable(ref) else _until(claims, mover.next_at())

    def _is_claimable(self, ref: QueueRef) -> bool:
        queue = self._shard(ref).catalog.find(ref)
        return queue is not None and not queue.row.is_paused and queue.row.drain_until is None

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        if (mover := self._mover_of(ref)) is not None:
            await mover.pull([id], self._runtime.clock.now_ms())
        return await super().get(ref, id)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        if (mover := self._mover_of(ref)) is not None:
            await mover.pull_for_claim(limit, now_ms)
        return await super().peek(ref, limit, now_ms)

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        # Each pass moves twice as many as the one before, so that a filter that matches few messages does not search
        # the new layout again for every step.
        step = limit
        while True:
            mover = self._mover_of(ref)
            before = 0 if mover is None else mover.moved
            page = await super().browse(ref, state, which, after, limit, now_ms)
            if mover is None or state not in (None, *_OLD_STATES):
                return page
            moved = 0
            while moved < step and (more := await mover.pull_page(after, page.after, now_ms)):
                moved += more
            # Nothing was moved since the page was read, here or in the background.
            if mover.moved == before:
                return page
            step *= 2

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        if (mover := self._mover_of(ref)) is not None and states_of(verb) & _OLD_STATES:
            if which.ids is None:
                await mover.pull_all()
            else:
                await mover.pull(list(which.ids), now_ms)
        return await super().alter(ref, verb, which, after, limit, now_ms)

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        mover = self._mover_of(LEGACY_QUEUE)
        if mover is None or tenant != LEGACY_QUEUE.tenant or queue not in (None, LEGACY_QUEUE.queue):
            return await super().counts(tenant, queue, now_ms)
        old = await mover.counts(now_ms)
        # Nothing is moved between the two, so each message is counted once.
        return Counts.total([await super().counts(tenant, queue, now_ms), old])

    # --- Background work and metrics ---------------------------------------------------------------------------

    async def backup(self, target: str) -> None:
        mover = self._mover
        if mover is None:
            await super().backup(target)
            return
        # The backup goes on if the caller is cancelled, as that of the new layout does.
        await shield(self._runtime, self._back_up(mover, Path(target)))

    async def _back_up(self, mover: LegacyMover, target: Path) -> None:
        """Copy the new layout, and then the old one. Meanwhile nothing is deleted from the old one."""
        await mover.hold()
        try:
            await super().backup(str(target))
            source = self._source
            if source is not None and self._layout.role.has_legacy:
                await self._runtime.offload_long(lambda: source.copy_to(target / LEGACY), thread=THREAD)
        finally:
            mover.release()

    async def figures(self) -> Figures:
        figures = await super().figures()
        mover = self._mover
        if mover is None:
            return figures
        return dataclasses.replace(figures, legacy_left=mover.left, legacy_unreadable=mover.unreadable)


def _until(claims: Claims, next_at: int | None) -> Claims:
    """Let the caller try again once the next old message is due."""
    if next_at is None or (claims.next_at is not None and claims.next_at <= next_at):
        return claims
    return claims._replace(next_at=next_at)
