"""The calls that a portion carries out for the coordinator."""

from typing import Any, cast

from holdfast.stores.rocks import keys
from holdfast.stores.rocks.all_shards import read_pages
from holdfast.stores.rocks.portions import calls
from holdfast.stores.rocks.portions.calls import Amount, PortionCall
from holdfast.stores.rocks.portions.routing import PortionDirectory
from holdfast.stores.rocks.portions.store import PortionStore
from holdfast.stores.rocks.shard import Shard
from holdfast.stores.rocks.transfers import decode_transfer


class PortionAnswers:
    """A portion as the coordinator calls it, a `PortionEnd`."""

    def __init__(self, store: PortionStore) -> None:
        self._store = store

    async def ask(self, call: PortionCall) -> Any:
        """Carry out a call; see `PortionEnd.ask`."""
        store, tenants = self._store, self._store.tenants
        match call:
            case calls.FindRow():
                return await store.directory.find_queue(call.ref) if store.has_queue(call.ref) else None
            case calls.Assign():
                return tenants.assign(call.ref, call.tenant, call.queue_id)
            case calls.Unassign():
                return tenants.unassign(call.tenant)
            case calls.CreateAssigned():
                return await cast(PortionDirectory, store.directory).create_here(call.ref, call.now_ms)
            case calls.CountQueues():
                return sum(shard.catalog.count(call.tenant) for shard in self._shards())
            case calls.HighestQueueId():
                return max(shard.catalog.highest_id(call.tenant) for shard in self._shards())
            case calls.Join():
                unfinished = [shard.transfers.unfinished() for shard in self._shards()]
                used = tenants.join(call.tenants, call.version)
                store.on_tenants(call.tenants)
                return calls.Joined(used, [each.announced for each in unfinished if each is not None])
            case calls.LearnTenant():
                store.on_tenants([call.tenant])
                return tenants.learn(call.tenant, call.version)
            case calls.TakeBack():
                return tenants.take_back(call.tenant, call.version)
            case calls.CopyPiece():
                return await self._shard_of(call.target_p).staging.copy_piece(call.blob_id, call.number, call.piece)
            case calls.HasArrived():
                return self._shard_of(call.target_p).transfers.has_arrived(decode_transfer(call.transfer))
            case calls.Arrive():
                return await self._arrive(call)
            case calls.ReadJournal():
                return await self._read_journal(call)
        raise TypeError(f"{type(call).__name__} is not a call for a portion")

    def _shards(self) -> list[Shard]:
        return [self._store.find_shard(number) for number in self._store.layout.numbers]

    def _shard_of(self, p: bytes) -> Shard:
        return self._store.find_shard(keys.shard_of(p, self._store.layout.shards))

    async def _arrive(self, call: calls.Arrive) -> None:
        tenants, transfer = self._store.tenants, decode_transfer(call.transfer)
        tenant = transfer.target.tenant
        await self._shard_of(call.target_p).transfers.arrive(
            transfer,
            self._store.runtime.clock.now_ms(),
            came=lambda messages, size: tenants.change_part(tenant, arrived=Amount(messages, size)),
        )

    async def _read_journal(self, call: calls.ReadJournal) -> list[calls.JournalPart]:
        shards = self._shards()
        positions = [call.positions[shard.number] for shard in shards]
        ends = None if call.ends is None else [call.ends[shard.number] for shard in shards]
        pages = await read_pages(shards, positions, ends, call.limit, call.tenant, call.oldest_at)
        return [
            calls.JournalPart(shard.number, page.events, page.position)
            for shard, page in zip(shards, pages, strict=True)
        ]
