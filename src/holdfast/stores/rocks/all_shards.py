"""Operations on all shards of a store together: sweeps, copies, tallies and metrics."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.checkpoints import copy_shards
from holdfast.stores.rocks.hot_prefixes import ShardSamples, hot_queues
from holdfast.stores.rocks.journal.journal import ShardPage
from holdfast.stores.rocks.recovery.layout import Layout
from holdfast.stores.rocks.recovery.marker import write_marker
from holdfast.stores.rocks.shard import Shard
from holdfast.stores.values import Swept
from holdfast.telemetry.figures import SYNC_BOUNDS, FamilyFigures, Figures, Histogram

# The number of events of each kind by queue, as `Store.take_tallies` returns it.
Tallies = dict[QueueRef, dict[Event, int]]


async def sweep_shards(shards: Sequence[Shard], runtime: Runtime, limit: int, now_ms: int) -> Swept:
    """Sweep all shards concurrently.

    Each shard reports its next deadline to the listener itself. So if one shard's disk blocks this call, later calls
    still sweep the other shards.
    """
    sweeps = [_start(runtime, partial(shard.sweep_beside_others, limit, now_ms)) for shard in shards]
    swept: list[Swept] = []
    failures: list[Exception] = []
    for each in sweeps:
        try:
            swept.append(await each)
        except Exception as error:  # wait for all shards, then raise the first error
            failures.append(error)
    if failures:
        raise failures[0]
    ends = [each.next_at for each in swept if each.next_at is not None]
    return Swept(sum(each.changed for each in swept), min(ends, default=None))


def _start(runtime: Runtime, work: Callable[[], Coroutine[Any, Any, Swept]]) -> Ticket[Swept]:
    """Run `work` in the background, and return the ticket of its result."""
    ticket: Ticket[Swept] = runtime.ticket()

    async def run() -> None:
        try:
            swept = await work()
        except Exception as error:
            if ticket.done():
                raise
            ticket.set_exception(error)
        else:
            if not ticket.done():
                ticket.set_result(swept)

    runtime.spawn(run())
    return ticket


async def copy_store(shards: Sequence[Shard], layout: Layout, target: Path) -> None:
    """Copy the store with these shards and this layout to the directory `target`."""
    copied = Layout(target, layout.role._replace(is_made=True))
    await copy_shards([(shard.checkpoints, path) for shard, path in zip(shards, copied.paths, strict=True)])
    if copied.has_shards:
        # Written last: without the marker, an incomplete backup is not taken for a store.
        write_marker(target, None, copied.role)


async def read_pages(
    shards: Sequence[Shard],
    positions: Sequence[int],
    ends: Sequence[int] | None,
    limit: int,
    tenant: str | None,
    oldest_at: int,
) -> list[ShardPage]:
    """Return one page of the journal of each shard; see `Store.journal`."""
    for shard in shards:
        # Claims are not synced by themselves, but with the next sync. Readers must see their events.
        await shard.engine.committed()
    untils: Sequence[int | None] = ends if ends is not None else [None] * len(positions)
    return [
        shard.journal.read(position, limit, tenant, oldest_at, end)
        for shard, position, end in zip(shards, positions, untils, strict=True)
    ]


async def finish_transfers(shards: Sequence[Shard], now_ms: int) -> None:
    """Carry out the moves that an earlier process with a part of the shards has left unfinished.

    `shards` are all shards of the store.
    """
    for source in shards:
        if (transfer := source.transfers.unfinished()) is None:
            continue
        target = shards[keys.shard_of(transfer.target_p, len(shards))]
        if not target.transfers.has_arrived(transfer):
            for pieces in transfer.pieces():
                await target.staging.copy(pieces, source.engine)
            await target.transfers.arrive(transfer, now_ms)
        await source.transfers.finish(transfer)


def add_tallies(shards: Sequence[Shard], tallies: Tallies) -> None:
    """Take the tallies of all shards, and add them to `tallies`."""
    for shard in shards:
        for ref, counts in shard.journal.take_tallies().items():
            kept = tallies.setdefault(ref, {})
            for event, count in counts.items():
                kept[event] = kept.get(event, 0) + count


def sum_figures(
    shards: Sequence[Shard], room: DiskRoom, failure: StoreUnavailable | None, now_ms: int, stops: int
) -> Figures:
    """Return the metrics of a store with these shards; it has none while it is stopped by `failure`."""
    figures = _sum_engines(shards) if shards else Figures(is_up=False)
    return replace(
        figures,
        free_bytes=room.free_bytes(),
        refusal=failure.message if failure else room.refusal(now_ms),
        refusals=room.refusals,
        stops=stops,
    )


def _sum_engines(shards: Sequence[Shard]) -> Figures:
    syncs, families = Histogram(SYNC_BOUNDS), dict[str, FamilyFigures]()
    every = [shard.engine.figures() for shard in shards]
    for each in every:
        if each.syncs is not None:
            syncs.add(each.syncs)
        for name, figures in each.families.items():
            families[name] = figures if name not in families else families[name].plus(figures)
    return Figures(
        is_up=all(each.is_up for each in every),
        writes=sum(each.writes or 0 for each in every),
        syncs=syncs,
        families=families,
        checkpoints=sum(shard.checkpoints.written for shard in shards),
        hot=hot_queues(
            ShardSamples(
                shard.engine.database.read_samples, shard.engine.database.commit.samples, shard.catalog.find_name
            )
            for shard in shards
        ),
        unwritten_bytes=sum(shard.engine.database.unwritten_bytes for shard in shards),
    )
