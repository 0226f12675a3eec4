"""Moves of messages from a portion to queues of other portions (`transfers.py`)."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.background import Backoff, wait_for_event
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, states_of
from holdfast.stores.rocks.payloads.pieces import RocksPieceCursor
from holdfast.stores.rocks.portions.calls import (
    NOTHING,
    Amount,
    Announced,
    Arrive,
    BeginTransfer,
    CopyPiece,
    EndTransfer,
    HasArrived,
    PortionEnd,
)
from holdfast.stores.rocks.shard import Shard
from holdfast.stores.rocks.transfers import TRANSFER_BYTES, RoomExceeded, Transfer, encode_transfer
from holdfast.stores.values import AlterStep

if TYPE_CHECKING:
    from holdfast.stores.rocks.portions.store import PortionStore

_TRIES = 10


class Departures:
    """The moves out of one portion. Those that cannot arrive yet are tried again in the background."""

    def __init__(self, store: "PortionStore", coordinator: PortionEnd) -> None:
        self._store = store
        self._coordinator = coordinator
        # The shards whose unfinished transfer is being tried again.
        self._resumed: set[int] = set()
        # By shard: the number of an announced transfer that may have been written as the store stopped.
        self._doubtful: dict[int, int] = {}
        self._closing = asyncio.Event()
        # One move at a time from each shard.
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def close(self) -> None:
        """Try no unfinished transfer again: the next process with this portion does."""
        self._closing.set()

    async def move(
        self, source: Shard, ref: QueueRef, verb: Move, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        """Move messages in one step, and return once they have arrived. See `Store.alter`.

        Raise `StoreUnavailable` if the other process is gone. Messages that have left their queue then arrive later.
        """
        take = partial(source.transfers.depart, ref, verb, which, after, limit, now_ms)
        async with self._locks[source.number]:
            room, largest = _room_for(source, ref, verb, which, after, limit, now_ms)
            for _ in range(_TRIES):
                begin = BeginTransfer(self._store.portion.number, ref, verb.to, room, largest)
                announced: Announced = await self._coordinator.ask(begin)
                number, left = announced.number, self._note_left(ref.tenant)
                try:
                    step, transfer = await take(
                        target_p=announced.target_p, room=room, largest=largest, announced=number, left=left
                    )
                except RoomExceeded as found:
                    room, largest = Amount(found.messages, found.size), found.largest
                    await self._give_up(number)
                    continue
                except HoldfastError:
                    if source.engine.failure is None:
                        await self._give_up(number)
                    else:
                        # The transfer may have been written. Once the store has reopened, `resume_once` knows.
                        self._doubtful[source.number] = number
                    raise
                if transfer is None:
                    await self._give_up(number)
                else:
                    await self._deliver_now(source, transfer)
                return step
        raise StoreUnavailable(f"messages of {ref} keep changing: gave up after {_TRIES} attempts to move them")

    async def _give_up(self, number: int) -> None:
        """Withdraw the announcement of a transfer that was not made."""
        await self._coordinator.ask(EndTransfer(number, NOTHING))

    def _note_left(self, tenant: str) -> Callable[[int, int], None]:
        return lambda messages, size: self._store.tenants.change_part(tenant, left=Amount(messages, size))

    async def _deliver_now(self, source: Shard, transfer: Transfer) -> None:
        try:
            await self.deliver(source, transfer)
        except StoreUnavailable as error:
            self.resume(source.number)
            raise StoreUnavailable(
                f"{len(transfer.messages)} messages have left {transfer.source}, and reach {transfer.target} as soon "
                f"as its store process takes them: {error.message}",
                outcome="unknown",
            ) from None

    async def deliver(self, source: Shard, transfer: Transfer) -> None:
        """Let the messages of a transfer arrive, and forget it."""
        ask, record = self._coordinator.ask, encode_transfer(transfer)
        if not await ask(HasArrived(transfer.target_p, record)):
            for pieces in transfer.pieces():
                cursor, number = RocksPieceCursor(source.engine, pieces), 0
                while (piece := cursor.next()) is not None:
                    await ask(CopyPiece(transfer.target_p, pieces.blob_id, number, piece))
                    number += 1
            await ask(Arrive(transfer.target_p, record))
        await source.transfers.finish(transfer)
        await ask(EndTransfer(transfer.announced, Amount(len(transfer.messages), transfer.bytes)))

    # --- Transfers that could not arrive at once ---------------------------------------------------------------------

    def resume(self, number: int) -> None:
        """Try again, in the background, to let the unfinished transfer of a shard arrive."""
        if number not in self._resumed:
            self._resumed.add(number)
            self._store.runtime.spawn(self._resume(number))

    async def _resume(self, number: int) -> None:
        backoff = Backoff("transfer", shard=number)
        try:
            while not self._closing.is_set():
                try:
                    await self.resume_once(number)
                except Exception as error:
                    await wait_for_event(self._store.runtime.clock, self._closing, backoff.failed(error))
                else:
                    backoff.succeeded()
                    return
        finally:
            self._resumed.discard(number)

    async def resume_once(self, number: int) -> None:
        """Let the unfinished transfer of a shard arrive, if there is one."""
        source = self._store.find_shard(number)
        if (transfer := source.transfers.unfinished()) is not None:
            await self.deliver(source, transfer)
        elif (announced := self._doubtful.get(number)) is not None:
            await self._give_up(announced)
        self._doubtful.pop(number, None)


def _room_for(
    source: Shard, ref: QueueRef, verb: Move, which: Filter, after: int | None, limit: int, now_ms: int
) -> tuple[Amount, int]:
    """Return how many messages and bytes the next transfer will probably have, and the bytes of the largest."""
    messages = size = largest = 0
    for entry in source.matching(ref, states_of(verb), which, after, limit, now_ms):
        if messages and size + entry.bytes > TRANSFER_BYTES:
            break
        messages += 1
        size += entry.bytes
        largest = max(largest, entry.bytes)
    return Amount(messages, size), largest
