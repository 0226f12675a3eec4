"""What the store is made of, put together once it is opened."""

from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.dice import Dice
from holdfast.stores.contract import QueueChange, QueueRow
from holdfast.stores.driver import Driver
from holdfast.stores.objects.altering import Altering
from holdfast.stores.objects.bucket import Bucket
from holdfast.stores.objects.changes import Changes
from holdfast.stores.objects.claiming import Claiming
from holdfast.stores.objects.counting import Counting
from holdfast.stores.objects.directory import Directory
from holdfast.stores.objects.gathering import Gathering
from holdfast.stores.objects.groups import Groups
from holdfast.stores.objects.intake import Intake
from holdfast.stores.objects.journal import Journal
from holdfast.stores.objects.ledgers import Ledgers
from holdfast.stores.objects.messages import Messages
from holdfast.stores.objects.nodes import Nodes
from holdfast.stores.objects.papers import Papers
from holdfast.stores.objects.payloads import Payloads
from holdfast.stores.objects.reading import Reading
from holdfast.stores.objects.settling import Settling
from holdfast.stores.objects.sheets import Sheets
from holdfast.stores.objects.shelves import Shelves
from holdfast.stores.objects.skew import Skew
from holdfast.stores.objects.states import States
from holdfast.stores.objects.sweeping import Sweeping
from holdfast.stores.objects.tidying import Tidying
from holdfast.stores.objects.timetable import Timetable
from holdfast.stores.objects.unit import ObjectUnits


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
