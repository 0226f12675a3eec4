"""What the store is made of, put together once it is opened."""

from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.stores.contract import QueueChange, QueueRow
from holdfast.stores.event_loop.driver import LoopDriver
from holdfast.stores.objects.buckets.bucket import Bucket
from holdfast.stores.objects.buckets.clock_skew import Skew
from holdfast.stores.objects.documents.cas_documents import CasDocuments
from holdfast.stores.objects.documents.json_documents import JsonDocuments
from holdfast.stores.objects.journal.gathering import Gathering
from holdfast.stores.objects.journal.journal import JournalCollector
from holdfast.stores.objects.messages.changes import Changes
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.groups import ObjectGroups
from holdfast.stores.objects.messages.inspection import ObjectInspection
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.payloads import ObjectPayloads
from holdfast.stores.objects.messages.queue_windows import ObjectQueueStates
from holdfast.stores.objects.messages.state_documents import StateDocuments
from holdfast.stores.objects.messages.unit import ObjectUnits
from holdfast.stores.objects.operations.bulk import ObjectBulkVerbs
from holdfast.stores.objects.operations.claims import ObjectClaims
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.enqueue import ObjectEnqueue
from holdfast.stores.objects.operations.follow_up import FollowUp
from holdfast.stores.objects.operations.ledgers import ObjectLedgers
from holdfast.stores.objects.operations.node_numbers import ObjectNodeNumbers
from holdfast.stores.objects.operations.schedules import ObjectSchedules
from holdfast.stores.objects.operations.sweep import ObjectSweep
from holdfast.stores.objects.operations.verdicts import ObjectVerdicts


class ObjectParts:
    def __init__(
        self,
        driver: LoopDriver,
        bucket: Bucket,
        clock: Clock,
        dice: Dice,
        *,
        check_room: Callable[[int], None],
        holder: str,
        retention_ms: int,
        skew_ms: int,
        measures_skew: bool,
        streams_above: int,
    ) -> None:
        """`holder` names this process: no other has it, nor this one after a restart."""
        sheets = CasDocuments(bucket, clock)
        papers = JsonDocuments(bucket)
        self.directory = ObjectDirectory(driver, papers, clock, self._queue_changed)
        self.skew = Skew(bucket, clock, skew_ms, is_measured=measures_skew)
        self.nodes = ObjectNodeNumbers(sheets, clock, dice, holder, self.skew)
        self.shelves = ObjectQueueStates(sheets, holder, skew_ms)
        self.messages = ObjectMessages(sheets, self.shelves, Changes(holder))
        self.counting = QueueCounts(self.messages, self.directory)
        self.states = StateDocuments(self.messages, papers)
        units = ObjectUnits(self.messages, self.counting)
        self.settling = ObjectVerdicts(self.messages, self.directory, units, dice)
        self.ledgers = ObjectLedgers(driver, self.messages, self.directory, self.states, self.settling)
        self.intake = ObjectEnqueue(self.messages, self.directory, self.nodes, self.counting)
        self.claiming = ObjectClaims(
            self.messages,
            self.directory,
            ObjectGroups(self.messages),
            self.states,
            self.ledgers,
            units,
            dice,
            streams_above,
        )
        self.reading = ObjectInspection(self.messages, self.counting, self.states, streams_above)
        self.altering = ObjectBulkVerbs(self.messages, self.directory, self.reading, self.counting, units)
        self.timetable = ObjectSchedules(driver, sheets, self.directory, self.intake, check_room)
        self.payloads = ObjectPayloads(driver, self.messages, self.directory, self.counting, self.nodes, check_room)
        gathering = Gathering(self.messages, self.directory)
        self.journal = JournalCollector(self.messages, papers, gathering, retention_ms, bucket.gather_ms)
        self.tidying = FollowUp(self.messages, self.altering, self.journal, clock)
        self.sweeping = ObjectSweep(self.messages, self.directory, units, self.altering, self.counting, self.journal)

    async def _queue_changed(self, row: QueueRow, change: QueueChange) -> None:
        if row.drain_until is not None:
            self.shelves.of(row.ref)  # so that this process sweeps it
        if change.drain_until is not None:
            await self.timetable.delete_all(row.ref)
