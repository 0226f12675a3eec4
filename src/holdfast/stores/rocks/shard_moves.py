"""Moves of messages between two shards of one store."""

from typing import NamedTuple

from holdfast.model.message import Pieces
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, states_of
from holdfast.stores.logic.bulk import alter
from holdfast.stores.rocks.engine.shard_links import ShardLinks
from holdfast.stores.rocks.shard import Shard
from holdfast.stores.values import AlterStep

# Maximum number of payload bytes in pieces that one step copies to another shard. A single larger payload is copied in
# a step of its own.
_COPIED_BYTES = 16 << 20


class ShardMove(NamedTuple):
    """A move of messages from one shard to a queue of another one."""

    links: ShardLinks
    source: Shard
    target: Shard

    async def run(
        self, ref: QueueRef, verb: Move, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        """Move messages of the queue `ref`, in one step that both shards commit together.

        Payloads in pieces are copied first. Until the step, the copies belong to no message; if it fails, sweeps delete
        them.
        """
        links, source, target = self
        await links.begin()
        copied: dict[int, Pieces] = {}
        try:
            size = 0
            for entry in source.matching(ref, states_of(verb), which, after, limit, now_ms):
                pieces = entry.envelope.pieces
                if pieces is None:
                    continue
                if copied and size + pieces.size > _COPIED_BYTES:
                    break
                size += pieces.size
                if await target.staging.copy(pieces, source.engine):
                    copied[pieces.blob_id] = pieces
            return await source.units.run_across(
                target.units,
                lambda: links.commit(source.engine, target.engine, (source.number, target.number)),
                lambda unit: alter(unit, ref, verb, which, after, limit),
                now_ms,
                copied,
            )
        finally:
            if target.engine.failure is None:
                target.staging.abandon_copies(copied.values())
            links.end()
