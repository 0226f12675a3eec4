"""Check the logs of servers with the fast path: each call is noted as landed in a database, or is not stored at all."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import to_bytes
from holdfast.model.invariants.damage import DamageKind
from holdfast.stores.findings import Findings
from holdfast.stores.formats.logged_enqueue import LoggedBatch, LoggedCall
from holdfast.stores.postgres.verify.directory_check import DatabaseDirectory
from holdfast.stores.postgres.verify.snapshots import Snapshot

_LANDED = "SELECT places FROM landed WHERE node = $1 AND epoch = $2 AND lane = $3"
_STORED = "SELECT id FROM items WHERE queue_key = $1 AND id = ANY($2::bigint[])"


class LogsCheck:
    """The check of logs. They are read after the snapshots were taken, so that each call that a snapshot has as stored
    is one that it has as landed, too."""

    def __init__(
        self, snapshots: Sequence[Snapshot], directories: Sequence[DatabaseDirectory], findings: Findings
    ) -> None:
        self._snapshots = snapshots
        self._directories = directories
        self._findings = findings
        # The record numbers that have landed, of the log that is being read.
        self._landed: dict[tuple[UUID, int, int], list[range]] = {}

    async def check(self, log: Iterable[LoggedBatch]) -> None:
        """Check one log. One that cannot be read to its end is a violation."""
        self._landed.clear()
        try:
            for batch in log:
                await self._check_batch(batch)
        except StoreUnavailable as error:
            self._findings.add(DamageKind.LOG_DAMAGED, error.message)

    async def _check_batch(self, batch: LoggedBatch) -> None:
        landed = await self._ranges(batch)
        for number, call in batch.calls:
            if any(number in each for each in landed):
                continue
            self._findings.totals["logged"] += len(call.messages)
            await self._check_not_stored(batch, call)

    async def _ranges(self, batch: LoggedBatch) -> list[range]:
        """Return the record numbers that are noted as landed, on any database: calls for a queue that has moved are
        stored by its new owner first."""
        part = (batch.node, batch.epoch, batch.shard)
        if part not in self._landed:
            self._landed[part] = [
                range(each.lower or 0, each.upper or 0)
                for snapshot in self._snapshots
                for each in await snapshot.value(_LANDED, *part) or ()
            ]
        return self._landed[part]

    async def _check_not_stored(self, batch: LoggedBatch, call: LoggedCall) -> None:
        ids = [each.id for each in call.messages]
        for snapshot, directory in zip(self._snapshots, self._directories, strict=True):
            for queue in directory.queues_of(call.ref, call.queue_id):
                for row in await snapshot.fetch(_STORED, queue.key, ids):
                    what = f"is stored, but the log of server {batch.node} counts it as waiting: it would come back"
                    self._findings.add(DamageKind.LANDED_INVALID, what, queue.ref, to_bytes(row["id"]))
