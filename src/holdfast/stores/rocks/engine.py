"""The one writer: operations append to an open batch; one commit serves all callers waiting at that moment.

    operation   changes memory, appends to the batch, says what to publish
    write       the batch goes to the operating system: a killed process loses none of it
    sync        one fsync for everything written so far
    publish     what the batch made claimable is shown, and its callers are answered

With durability "os" there is no sync: the first operation of a loop's turn is written at once, and all others of the
turn together at its end, so a lone caller does not wait and a crowd shares. With "fsync" a claim and an extension are
answered after the write, and everything else after the sync.
"""

from collections.abc import Callable
from enum import StrEnum

from rocksdict import ColumnFamily, WriteBatch

from holdfast.clock import steady_s
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.rocks.database import Database
from holdfast.stores.rocks.log_batch import SYNCED, SYNCED_KEY
from holdfast.telemetry.figures import SYNC_BOUNDS, Figures, Histogram


class Durability(StrEnum):
    FSYNC = "fsync"
    OS = "os"


class Engine:
    def __init__(self, database: Database, runtime: Runtime, durability: Durability) -> None:
        self.database = database
        self._runtime = runtime
        self.is_os = durability is Durability.OS
        self._batch = WriteBatch(raw_mode=True)
        # The batch's own methods: looked up once, for they are called for every key.
        self.put = self._batch.put
        self.delete = self._batch.delete
        # Called before each write, to add what is written once per batch: counters, the journal's block.
        self.before_write: Callable[[], None] = lambda: None
        # What the operations of the open commit make known once it holds, and what is called after all of that.
        self._to_publish: list[Callable[[], None]] = []
        self.after_publish: Callable[[], None] = lambda: None
        # Called once, with the cause, when a failed write or sync stops the engine.
        self.on_stop: Callable[[str], None] = lambda cause: None
        self._waiting: list[Ticket[None]] = []
        # Written, but not yet on disk.
        self._is_unsynced = False
        # The sequence of the last operation that is known to be, and that the log says is.
        self._synced = self._synced_in_log = 0
        self._is_syncing = False
        self._is_turn_taken = False
        self._is_in_step = False
        # Set while the keys of one transition are put: half of them must never be written.
        self.is_mid_change = False
        self._failure: StoreUnavailable | None = None
        # Set while the store reopens by itself after a stop, which it does not while it is being opened or closed.
        self.reopens = False
        self._writes = 0
        self._syncs = Histogram(SYNC_BOUNDS)

    # --- One operation -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Every operation that writes begins here. Refused checks come before it: what is begun is carried out."""
        if self._failure is not None:
            raise self._refusal()
        if self._is_in_step:
            # The last operation ended in the middle: its half must not be written with the next one's batch.
            self._stop(RuntimeError("an operation broke off in the middle"))
            raise self._refusal()
        self._is_in_step = True

    def end(self) -> None:
        """End an operation that nobody waits for: the next commit takes it along."""
        self._is_in_step = False

    def publish_after_commit(self, publish: Callable[[], None]) -> None:
        self._to_publish.append(publish)

    def written(self) -> None:
        """End an operation that is answered as soon as the operating system has it."""
        self._is_in_step = False
        self.write()
        if self._to_publish and not self._is_syncing:
            # Nobody waits for the sync, but somebody may wait for what it makes known.
            self._is_syncing = True
            self._runtime.spawn(self._sync_waiting())

    async def committed(self) -> None:
        """End an operation; returns once it is as durable as was promised."""
        ticket = self.commit()
        if ticket is not None:
            await ticket

    def commit(self) -> Ticket[None] | None:
        """End an operation. Return a ticket to wait on until it is as durable as was promised; None if it is."""
        self._is_in_step = False
        if self.is_os:
            if not self._is_turn_taken:
                self._take_turn()
                return None
        # Also while a sync is under way: what this call answers from may be in it.
        elif not (len(self._batch) or self._is_unsynced or self._is_syncing):
            self._publish_open()
            return None
        ticket = self._runtime.ticket()
        self._waiting.append(ticket)
        if not self.is_os and not self._is_syncing:
            self._is_syncing = True
            self._runtime.spawn(self._sync_waiting())
        return ticket

    def _take_turn(self) -> None:
        if self._runtime.has_turns:
            self._is_turn_taken = True
            self._runtime.at_turn_end(self._end_turn)
        self.write()

    def _end_turn(self) -> None:
        self._is_turn_taken = False
        if self._waiting and self._failure is None:
            try:
                self.write()
            except StoreUnavailable:
                return  # `write` has told everyone who waits
            waiting, self._waiting = self._waiting, []
            _settle(waiting, None)

    # --- Writing and syncing -----------------------------------------------------------------------------------

    def write(self) -> None:
        """Hand the open batch to the operating system. Reads do this first: they see every operation before them."""
        if self._failure is not None:
            raise self._refusal()
        if not len(self._batch):
            if self.is_os and not self._is_in_step:
                # An operation that changed nothing may still have something to tell. Left here, it would make the next
                # claim sync, on a thread that closing does not wait for.
                self._publish_open()
            return
        if self.is_mid_change:
            self._stop(RuntimeError("a read fell into the middle of a change"))
            raise self._refusal()
        self.before_write()
        batch = self._batch
        if self._synced > self._synced_in_log:
            self._synced_in_log = self._synced
            self.put(SYNCED_KEY, SYNCED.pack(self._synced), None)
        try:
            self.database.write(batch)
        except Exception as error:
            self._stop(error)
            raise self._refusal() from error
        self._batch = WriteBatch(raw_mode=True)
        self.put, self.delete = self._batch.put, self._batch.delete
        self._is_unsynced = True
        self._writes += 1
        if self.is_os:
            self._publish_open()

    def delete_range(self, lower: bytes, upper: bytes, handle: ColumnFamily | None) -> None:
        self._batch.delete_range(lower, upper, handle)

    async def _sync_waiting(self) -> None:
        try:
            while (self._waiting or self._to_publish) and self._failure is None:
                try:
                    self.write()
                except StoreUnavailable:
                    return  # `write` has told everyone who waits
                waiting, self._waiting = self._waiting, []
                to_publish, self._to_publish = self._to_publish, []
                if self._is_unsynced:
                    self._is_unsynced = False
                    sequence = self.database.latest_sequence()
                    try:
                        await self._runtime.offload(self._sync)
                        self._synced = sequence
                    except Exception as error:
                        self._waiting = waiting + self._waiting
                        self._stop(error)
                        return
                self._publish(to_publish)
                _settle(waiting, None)
        finally:
            self._is_syncing = False

    def sync_now(self) -> None:
        """At the start and at the end, when nobody else waits."""
        sequence = self.database.latest_sequence()
        try:
            self.database.sync()
        except Exception as error:
            self._stop(error)
            raise self._refusal() from error
        self._synced = sequence

    def _sync(self) -> None:
        """One at a time, on a thread of its own, which alone counts them."""
        started_s = steady_s()
        self.database.sync()
        self._syncs.observe(steady_s() - started_s)

    def _publish_open(self) -> None:
        """Make known what the open commit has gathered: it holds already."""
        to_publish = self._to_publish
        if to_publish:
            self._to_publish = []
        self._publish(to_publish)

    def _publish(self, to_publish: list[Callable[[], None]]) -> None:
        for publish in to_publish:
            publish()
        self.after_publish()

    def close(self, failure: StoreUnavailable | None = None) -> None:
        """Refuse every call from now on, with this error, and drop what the last batch would have published."""
        self._failure = failure or StoreUnavailable("this store was closed: open it again")
        self._to_publish = []
        self.before_write = self.after_publish = lambda: None
        self.on_stop = lambda cause: None
        waiting, self._waiting = self._waiting, []
        _settle(waiting, self._failure)

    @property
    def failure(self) -> StoreUnavailable | None:
        """Why every call is refused; None while none is."""
        return self._failure

    def check(self) -> None:
        if self._failure is not None:
            raise self._refusal()

    def figures(self) -> Figures:
        return Figures(
            is_up=self._failure is None, writes=self._writes, syncs=self._syncs, families=self.database.figures()
        )

    def _stop(self, error: Exception) -> None:
        """After a failed write or sync nothing in memory can be trusted, so every call is refused from now on."""
        path = self.database.path
        advice = (
            "The store reopens by itself once the disk takes writes again; try again later"
            if self.reopens
            else "Open the store again once the disk takes writes"
        )
        self._failure = StoreUnavailable(
            f"the store in {path} has stopped: {error}. Answered calls are safe. {advice}", path=str(path)
        )
        waiting, self._waiting = self._waiting, []
        _settle(waiting, self._failure)
        self.on_stop(str(error))

    def _refusal(self) -> StoreUnavailable:
        """A new error for each call: one that is raised again and again keeps every caller's frames alive."""
        assert self._failure is not None
        return StoreUnavailable(self._failure.message, **self._failure.facts)


def _settle(waiting: list[Ticket[None]], error: StoreUnavailable | None) -> None:
    for ticket in waiting:
        if ticket.done():
            continue  # its caller left
        if error is None:
            ticket.set_result(None)
        else:
            ticket.set_exception(error)
