"""The components of an open object store, and how they depend on each other."""

from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.driver import LoopDriver
from holdfast.stores.objects.buckets.bucket import Bucket
from holdfast.stores.objects.buckets.clock_skew import ClockSkew
from holdfast.stores.objects.documents.cas_documents import CasDocuments
from holdfast.stores.objects.documents.json_documents import JsonDocuments
from holdfast.stores.objects.journal.journal import JournalCollector
from holdfast.stores.objects.journal.outbox_scan import OutboxScan
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
from holdfast.stores.values import QueueChange, QueueRow


class ObjectParts:
    """All components of one open store. They are created by `ObjectStore.open`."""

    def __init__(
        self,
        driver: LoopDriver,
        bucket: Bucket,
        clock: Clock,
        dice: Dice,
        *,
        check_disk_space: Callable[[int], None],
        holder: str,
        retention_ms: int,
        skew_ms: int,
        measures_skew: bool,
        streams_above: int,
    ) -> None:
        """Build the components.

        `holder` identifies this process in leases and node numbers; it must be unique per process and per start.
        `check_disk_space` raises `StoreUnavailable` if the disk has no room for that many more bytes. `streams_above`
        is the payload size in bytes above which payloads are streamed.
        """
        documents = CasDocuments(bucket, clock)
        json_documents = JsonDocuments(bucket)
        self.directory = ObjectDirectory(driver, json_documents, clock, self._queue_changed, self._queue_created)
        self.skew = ClockSkew(bucket, clock, skew_ms, is_measured=measures_skew)
        self.nodes = ObjectNodeNumbers(documents, clock, dice, holder, self.skew)
        self.queues = ObjectQueueStates(documents, holder, skew_ms)
        self.messages = ObjectMessages(documents, self.queues, Changes(holder), self.directory.may_have_format_1)
        self.queue_counts = QueueCounts(self.messages, self.directory)
        self.states = StateDocuments(self.messages, json_documents)
        units = ObjectUnits(self.messages, self.queue_counts)
        self.verdicts = ObjectVerdicts(self.messages, self.directory, units, dice)
        self.ledgers = ObjectLedgers(driver, self.messages, self.directory, self.states, self.verdicts)
        self.enqueue = ObjectEnqueue(self.messages, self.directory, self.nodes, self.queue_counts)
        self.claims = ObjectClaims(
            self.messages,
            self.directory,
            ObjectGroups(self.messages),
            self.states,
            self.ledgers,
            units,
            dice,
            streams_above,
        )
        self.inspection = ObjectInspection(self.messages, self.queue_counts, self.states, streams_above)
        self.bulk = ObjectBulkVerbs(self.messages, self.directory, self.inspection, self.queue_counts, units)
        self.schedules = ObjectSchedules(driver, documents, self.directory, self.enqueue, check_disk_space)
        self.payloads = ObjectPayloads(
            driver, self.messages, self.directory, self.queue_counts, self.nodes, check_disk_space
        )
        outbox_scan = OutboxScan(self.messages, self.directory)
        self.journal = JournalCollector(self.messages, json_documents, outbox_scan, retention_ms, bucket.outbox_scan_ms)
        self.follow_up = FollowUp(self.messages, self.bulk, self.journal, clock)
        self.sweep = ObjectSweep(self.messages, self.directory, units, self.bulk, self.queue_counts, self.journal)

    def _queue_created(self, ref: QueueRef, now_ms: int) -> None:
        self.queues.note_created(ref, now_ms)

    async def _queue_changed(self, row: QueueRow, change: QueueChange) -> None:
        if row.drain_until is not None:
            self.queues.get(row.ref)  # Creating the state makes sweeps of this process include the queue.
        if change.drain_until is not None:
            await self.schedules.delete_all(row.ref)
