"""What the store is made of, put together once it is opened."""

from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.stores.contract import QueueChange, QueueRow
from holdfast.stores.event_loop.driver import Driver
from holdfast.stores.objects.buckets.bucket import Bucket
from holdfast.stores.objects.buckets.clock_skew import Skew
from holdfast.stores.objects.documents.cas_documents import Sheets
from holdfast.stores.objects.documents.json_documents import Papers
from holdfast.stores.objects.journal.gathering import Gathering
from holdfast.stores.objects.journal.journal import Journal
from holdfast.stores.objects.messages.changes import Changes
from holdfast.stores.objects.messages.counts import Counting
from holdfast.stores.objects.messages.groups import Groups
from holdfast.stores.objects.messages.inspection import Reading
from holdfast.stores.objects.messages.messages import Messages
from holdfast.stores.objects.messages.payloads import Payloads
from holdfast.stores.objects.messages.queue_windows import Shelves
from holdfast.stores.objects.messages.state_documents import States
from holdfast.stores.objects.messages.unit import ObjectUnits
from holdfast.stores.objects.operations.bulk import Altering
from holdfast.stores.objects.operations.claims import Claiming
from holdfast.stores.objects.operations.directory import Directory
from holdfast.stores.objects.operations.enqueue import Intake
from holdfast.stores.objects.operations.follow_up import Tidying
from holdfast.stores.objects.operations.ledgers import Ledgers
from holdfast.stores.objects.operations.node_numbers import Nodes
from holdfast.stores.objects.operations.schedules import Timetable
from holdfast.stores.objects.operations.sweep import Sweeping
from holdfast.stores.objects.operations.verdicts import Settling


class Parts:
    def __init__(
        self,
        driver: Driver,
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
        sheets = Sheets(bucket, clock)
        papers = Papers(bucket)
        self.directory = Directory(driver, papers, clock, self._queue_changed)
        self.skew = Skew(bucket, clock, skew_ms, is_measured=measures_skew)
        self.nodes = Nodes(sheets, clock, dice, holder, self.skew)
        self.shelves = Shelves(sheets, holder, skew_ms)
        self.messages = Messages(sheets, self.shelves, Changes(holder))
        self.counting = Counting(self.messages, self.directory)
        self.states = States(self.messages, papers)
        units = ObjectUnits(self.messages, self.counting)
        self.settling = Settling(self.messages, self.directory, units, dice)
        self.ledgers = Ledgers(driver, self.messages, self.directory, self.states, self.settling)
        self.intake = Intake(self.messages, self.directory, self.nodes, self.counting)
        self.claiming = Claiming(
            self.messages, self.directory, Groups(self.messages), self.states, self.ledgers, units, dice, streams_above
        )
        self.reading = Reading(self.messages, self.counting, self.states, streams_above)
        self.altering = Altering(self.messages, self.directory, self.reading, self.counting, units)
        self.timetable = Timetable(driver, sheets, self.directory, self.intake, check_room)
        self.payloads = Payloads(driver, self.messages, self.directory, self.counting, self.nodes, check_room)
        gathering = Gathering(self.messages, self.directory)
        self.journal = Journal(self.messages, papers, gathering, retention_ms, bucket.gather_ms)
        self.tidying = Tidying(self.messages, self.altering, self.journal, clock)
        self.sweeping = Sweeping(self.messages, self.directory, units, self.altering, self.counting, self.journal)

    async def _queue_changed(self, row: QueueRow, change: QueueChange) -> None:
        if row.drain_until is not None:
            self.shelves.of(row.ref)  # so that this process sweeps it
        if change.drain_until is not None:
            await self.timetable.delete_all(row.ref)
