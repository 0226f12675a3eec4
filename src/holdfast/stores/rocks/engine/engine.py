"""The one writer: operations gather changes in an open commit, which serves all callers waiting at that moment.

    operation   changes memory, adds to the commit, says what to publish
    write       the commit goes to the log as one frame: a killed process loses none of it
    sync        one sync of the log for everything written so far
    publish     what the commit made claimable is shown, and its callers are answered

With durability "os" there is no sync: the first operation of a loop's turn is written at once, and all others of the
turn together at its end, so a lone caller does not wait and a crowd shares. With "fsync" a claim and an extension are
answered after the write, and everything else after the sync. Blocking callers sync on their own threads: one leads a
commit for all who wait, and then offers the lead of the next one to the first who came meanwhile. While syncs take
long, those of a lone caller run on another thread.
"""

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.clock import steady_s
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.log.commit_log import PendingSync
from holdfast.stores.rocks.log.frames import LogPartKind
from holdfast.telemetry.figures import SYNC_BOUNDS, Figures, Histogram

if TYPE_CHECKING:
    from holdfast.stores.rocks.engine.shard_links import ShardLink

# To hand a sync to another thread and back costs about 0.1 ms, of which 0.07 are processor time. So a lone caller syncs
# by itself, unless such syncs take longer than this on average. Blocking callers that wait for each other always do:
# their syncs seem to take long when they wait for the interpreter afterwards.
_SHORT_SYNC_S = 0.0005
# The weight of the last one in that average: a single slow sync of a disk that is mostly fast changes nothing.
_WEIGHT = 1 / 16
# If they take longer, syncs go to another thread for a while. The disk may be slow; or the processors are busy, and a
# thread that has computed much waits for one after every sync, about 4 ms. The pause doubles with every attempt.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0


class Durability(StrEnum):
    FSYNC = "fsync"
    OS = "os"


class Engine:
    def __init__(
        self, database: Database, runtime: Runtime, durability: Durability, *, shard: int = 0, is_only: bool = True
    ) -> None:
        """`lane`: the lane of the runtime that syncs. `is_only`: no other engine serves callers beside this one."""
        self.database = database
        self._runtime = runtime
        self.shard = shard
        self._is_only = is_only
        self.is_os = durability is Durability.OS
        commit = database.commit
        # The open commit's own methods: looked up once, for they are called for every key.
        self.put, self.insert, self.delete = commit.put, commit.insert, commit.delete
        self.delete_range = commit.delete_range
        self._commit = commit
        # Called before each write, to add what is written once per commit: counters, the journal's block.
        self.before_write: Callable[[], None] = lambda: None
        # Called after each write, once the log has it.
        self.after_write: Callable[[], None] = lambda: None
        # What the operations of the open commit make known once it holds, and what is called after all of that.
        self._to_publish: list[Callable[[], None]] = []
        self.after_publish: Callable[[], None] = lambda: None
        # Called once, with the cause, when a failed write or sync stops the engine.
        self.on_stop: Callable[[str], None] = lambda cause: None
        self._waiting: list[Waiting] = []
        # Set while a caller that was woken up to lead the next commit has not begun it.
        self._offered: _Lead | None = None
        self._is_syncing = False
        # Other callers waited for the last sync, or began to wait meanwhile.
        self._has_company = False
        # Set while a sync at the end of the loop's turn is to come.
        self._is_sync_due = False
        # Callers of `synced` that wait for the end of a sync under way.
        self._waiting_for_sync: list[Ticket[None]] = []
        # A commit that has its other half in another shard, and the number of its frame here.
        self._link: ShardLink | None = None
        self._linked_frame = 0
        self._is_turn_taken = False
        self._is_in_step = False
        # Set while the keys of one transition are put: half of them must never be written.
        self.is_mid_change = False
        # Why every call is refused; None while none is.
        self.failure: StoreUnavailable | None = None
        # Set while the store reopens by itself after a stop, which it does not while it is being opened or closed.
        self.reopens = False
        self._writes = 0
        self._syncs = Histogram(SYNC_BOUNDS)
        self._last_sync_s = 0.0
        # How long syncs by callers take on average, when they may sync again, and how long they may not the next time.
        self._usual_s = 0.0
        self._here_again_at_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    # --- One operation -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin an operation that writes. Refuse before it: what is begun is carried out."""
        if self.failure is not None:
            raise self._refusal()
        if self._is_in_step:
            # The last operation ended in the middle: its half must not be written with the next one.
            self.stop(RuntimeError("an operation broke off in the middle"))
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
        if self._to_publish and not self._is_syncing and self._offered is None:
            # Nobody waits for the sync, but somebody may wait for what it makes known. A caller that was offered the
            # lead will sync.
            self._begin_sync()

    async def committed(self) -> None:
        """End an operation; return once it is as durable as was promised."""
        ticket = self.commit()
        if ticket is not None:
            await self.wait(ticket)

    async def wait(self, ticket: "Waiting") -> None:
        """Return once the operation of a ticket of `commit` is as durable as was promised."""
        while True:
            try:
                lead = await ticket
            except BaseException:
                self._leave(ticket)
                raise
            followed = None if lead is None else self._accept(lead)
            if followed is None:
                return
            ticket = followed

    def commit(self) -> "Waiting | None":
        """End an operation. Return a ticket to `wait` on until it is as durable as was promised; None if it is."""
        self._is_in_step = False
        if self.is_os:
            if not self._is_turn_taken:
                self._take_turn()
                return None
        # Also while a sync is under way: what this call answers from may be in it.
        elif not self._is_syncing:
            if self._commit.is_empty and not self._is_unsynced:
                self._publish_open()
                return None
            if self._may_lead:
                self._commit_aside()
                return None
        return self._wait_for_commit()

    def _commit_aside(self) -> None:
        """Write and sync on the calling thread, while others prepare the next commit, and hand the lead of that to one
        of them: to hand a sync to another thread and back costs as much as a short sync."""
        self.write()
        log = self.database.log
        # Mostly nobody else waits: each look spares a lone caller a function.
        waiting = self._take_waiting() if self._waiting or self._offered is not None else []
        to_publish, self._to_publish = self._to_publish, []
        if self._is_unsynced:
            pending = log.begin_sync()
            self._is_syncing = True
            try:
                self._runtime.step_aside(lambda: self._sync(pending))
            except Exception as error:
                self._waiting = waiting + self._waiting
                if self.failure is None:
                    self.stop(error)
                else:
                    self._tell_waiting()
                raise self._refusal() from error
            except BaseException:  # Ctrl-C: the others wait for the next sync
                self._waiting, self._to_publish = waiting + self._waiting, to_publish + self._to_publish
                raise
            finally:
                self._is_syncing = False
                self._has_company = bool(waiting or self._waiting)
                if self._waiting_for_sync:
                    self._tell_synced()
                if self._waiting or self._to_publish:
                    self._offer_lead()
            if self.failure is not None:
                # Stopped or closed meanwhile: nothing in memory is shown any more.
                _settle(waiting, self.failure)
                raise self._refusal()
            log.end_sync(pending)
            if not self._has_company:
                self._note_sync_here()
        self._publish(to_publish)
        if waiting:
            _settle(waiting, None)

    def _offer_lead(self) -> None:
        """Let one of those who wait lead the next commit."""
        if self.failure is not None or self._is_syncing:
            return
        if self._link is None and self._runtime.callers_have_threads:
            while self._waiting:
                ticket = self._waiting.pop(0)
                if not ticket.done():
                    self._offered = _Lead()
                    ticket.set_result(self._offered)
                    return
        if self._waiting or self._to_publish:
            self._sync_on_thread()

    def _accept(self, lead: "_Lead") -> "Waiting | None":
        """Lead the next commit, or return the ticket of the one that includes the caller's operation."""
        if lead.taken is not None:
            return lead.taken
        self._offered = None
        self.check()
        if self._may_lead:
            self._commit_aside()
            return None
        return self._wait_for_commit()

    def _leave(self, ticket: "Waiting") -> None:
        """Offer no lead to a caller that does not wait any more (Ctrl-C), and pass on the one that it has."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        elif self._offered is not None and ticket.exception() is None and ticket.result() is self._offered:
            self._offered = None
            self._offer_lead()

    def _take_waiting(self) -> "list[Waiting]":
        """Return the tickets of all whose operations the commit that now begins includes."""
        waiting, self._waiting = self._waiting, []
        if self._offered is not None:
            # Whoever is to lead has not woken up yet. Its operation is in this commit too.
            self._offered.taken = self._runtime.ticket()
            waiting.append(self._offered.taken)
            self._offered = None
        return waiting

    def _commit_here(self) -> None:
        """Write and sync on the loop itself, at the end of a turn."""
        self.write()
        if self._is_unsynced:
            pending = self.database.log.begin_sync()
            try:
                self._sync(pending)
            except Exception as error:
                self.stop(error)
                raise self._refusal() from error
            self.database.log.end_sync(pending)
            self._note_sync_here()
        self._publish_open()

    @property
    def _may_lead(self) -> bool:
        """Return whether the calling thread may sync: a lone caller's not in a pause, and nobody's while a link waits
        for another shard."""
        return (
            self._runtime.may_step_aside
            and self._link is None
            and (self._has_company or steady_s() >= self._here_again_at_s)
        )

    def _may_sync_here(self) -> bool:
        """Return whether the calling thread may sync by itself. With other engines beside this one it may not: their
        callers would wait for this one's disk."""
        return self._is_only and steady_s() >= self._here_again_at_s

    def _note_sync_here(self) -> None:
        self._usual_s += (self._last_sync_s - self._usual_s) * _WEIGHT
        if self._usual_s <= _SHORT_SYNC_S:
            self._pause_s = max(self._pause_s / 2, _FIRST_PAUSE_S)
            return
        self._here_again_at_s = steady_s() + self._pause_s
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        # The first one after the pause decides.
        self._usual_s = _SHORT_SYNC_S

    def _wait_for_commit(self) -> "Waiting":
        ticket = self._runtime.ticket()
        self._waiting.append(ticket)
        if not self.is_os and not self._is_syncing:
            self._begin_sync()
        return ticket

    def _begin_sync(self) -> None:
        """Sync for those who wait: on the loop itself if one caller waits and syncs are short, or else on another
        thread. Which it is shows at the end of the turn."""
        if self._runtime.may_block_at_turn_end and self._may_sync_here():
            if not self._is_sync_due:
                self._is_sync_due = True
                self._runtime.at_turn_end(self._sync_at_turn_end)
            return
        self._sync_on_thread()

    def _sync_on_thread(self) -> None:
        self._is_syncing = True
        self._runtime.spawn(self._sync_waiting())

    def _sync_at_turn_end(self) -> None:
        self._is_sync_due = False
        if self._is_syncing or self.failure is not None:
            return  # another sync has begun and serves everyone who waits, or they have been told
        if len(self._waiting) > 1:
            self._sync_on_thread()  # a crowd has work to do meanwhile
            return
        try:
            self._commit_here()
        except StoreUnavailable:
            return  # the stop has told everyone who waits
        waiting = self._take_waiting()
        _settle(waiting, None)

    def _take_turn(self) -> None:
        if self._runtime.has_turns:
            self._is_turn_taken = True
            self._runtime.at_turn_end(self._end_turn)
        self.write()

    def _end_turn(self) -> None:
        self._is_turn_taken = False
        if self._waiting and self.failure is None:
            try:
                self.write()
            except StoreUnavailable:
                return  # `write` has told everyone who waits
            waiting = self._take_waiting()
            _settle(waiting, None)

    # --- Writing and syncing -----------------------------------------------------------------------------------

    @property
    def _is_unsynced(self) -> bool:
        """Return whether something is written that is not known to be on disk."""
        log = self.database.log
        return log.synced < log.number

    def write(self, kind: LogPartKind = LogPartKind.CHANGES) -> None:
        """Hand the open commit to the operating system. Reads do this first: they see every operation before them."""
        if self.failure is not None:
            raise self._refusal()
        if self._commit.is_empty:
            if self.is_os and not self._is_in_step:
                # An operation that changed nothing may still have something to tell. Left here, it would make the next
                # claim sync, on a thread that closing does not wait for.
                self._publish_open()
            return
        if self.is_mid_change:
            self.stop(RuntimeError("a read fell into the middle of a change"))
            raise self._refusal()
        self.before_write()
        try:
            self.database.write(kind)
        except Exception as error:
            self.stop(error)
            raise self._refusal() from error
        except BaseException:
            # Ctrl-C: memory has changes that the log may lack, and later commits must not build on them.
            self.stop(RuntimeError("a write was interrupted"))
            raise
        self._writes += 1
        self.after_write()
        if self.is_os:
            self._publish_open()

    def write_linked(self, link: "ShardLink") -> None:
        """Hand the open commit to the operating system as one half of a link."""
        self.write(LogPartKind.LINKED)
        self._link, self._linked_frame = link, self.database.log.number

    async def _sync_waiting(self) -> None:
        try:
            while (self._waiting or self._to_publish) and self.failure is None:
                try:
                    self.write()
                except StoreUnavailable:
                    return  # `write` has told everyone who waits
                waiting = self._take_waiting()
                to_publish, self._to_publish = self._to_publish, []
                if self._is_unsynced and not await self._sync_written():
                    self._waiting = waiting + self._waiting
                    self._tell_waiting()
                    return
                self._tell_synced()
                self._publish(to_publish)
                _settle(waiting, None)
                self._has_company = len(waiting) > 1 or bool(self._waiting)
                if self._waiting and self._runtime.callers_have_threads:
                    break  # they sync for each other
        finally:
            self._is_syncing = False
            self._tell_synced()
        if self._waiting or self._to_publish:
            self._offer_lead()

    async def _sync_written(self) -> bool:
        """Sync everything written so far. Return False if that failed, which has stopped the engine."""
        log = self.database.log
        pending = log.begin_sync()
        try:
            await self._runtime.offload(lambda: self._sync(pending), lane=self.shard)
        except Exception as error:
            if self.failure is None:
                self.stop(error)
            return False
        if self._link is not None and pending.number >= self._linked_frame:
            await self._link.meet(self)
            if self.failure is not None:
                return False
            self._link = None
        log.end_sync(pending)
        return True

    def sync_soon(self) -> None:
        """Sync in the background, if there is anything to sync."""

        async def sync() -> None:
            with suppress(StoreUnavailable):  # whoever waits for it has been told
                await self.synced()

        self._runtime.spawn(sync())

    async def synced(self) -> None:
        """Return once everything written so far is on disk. Raise `StoreUnavailable` if the engine has stopped."""
        log = self.database.log
        # Others go on writing: to wait for them too might never end.
        upto = log.number
        while log.synced < upto:
            if self._is_syncing:
                # One sync at a time: this caller waits for that one, and then for one of its own.
                ticket = self._runtime.ticket()
                self._waiting_for_sync.append(ticket)
                await ticket
            else:
                self._is_syncing = True
                try:
                    await self._sync_written()
                finally:
                    self._is_syncing = False
                    self._tell_synced()
                if not self.is_os and (self._waiting or self._to_publish):
                    self._sync_on_thread()
            self.check()

    def sync_now(self) -> None:
        """Sync in the calling thread: at the start and at the end, when nobody else waits."""
        log = self.database.log
        pending = log.begin_sync()
        try:
            self.database.sync(pending)
        except Exception as error:
            self.stop(error)
            raise self._refusal() from error
        log.end_sync(pending)

    def _sync(self, pending: PendingSync) -> None:
        """Sync on a thread of its own, one at a time; it alone counts them."""
        started_s = steady_s()
        self.database.sync(pending)
        self._last_sync_s = steady_s() - started_s
        self._syncs.observe(self._last_sync_s)

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
        """Refuse every call from now on, with this error, and drop what the last commit would have published."""
        self.failure = failure or StoreUnavailable("this store was closed: open it again")
        self._to_publish = []
        self.before_write = self.after_write = self.after_publish = lambda: None
        self.on_stop = lambda cause: None
        self._tell_waiting()

    def check(self) -> None:
        """Raise the engine's failure, if it has one."""
        if self.failure is not None:
            raise self._refusal()

    def figures(self) -> Figures:
        return Figures(
            is_up=self.failure is None, writes=self._writes, syncs=self._syncs, families=self.database.figures()
        )

    def stop(self, error: Exception) -> None:
        """Refuse every call from now on: after a failed write or sync nothing in memory can be trusted."""
        path = self.database.path
        advice = (
            "The store reopens by itself once the disk takes writes again; try again later"
            if self.reopens
            else "Open the store again once the disk takes writes"
        )
        self.failure = StoreUnavailable(
            f"the store in {path} has stopped: {error}. Answered calls are safe. {advice}", path=str(path)
        )
        self._tell_waiting()
        self.on_stop(str(error))

    def _tell_waiting(self) -> None:
        waiting = self._take_waiting()
        _settle(waiting, self.failure)
        if self._link is not None:
            self._link.release()

    def _tell_synced(self) -> None:
        if self._waiting_for_sync:
            waiting, self._waiting_for_sync = self._waiting_for_sync, []
            _settle(waiting, None)

    def _refusal(self) -> StoreUnavailable:
        """Return a new error for each call: one that is raised again and again keeps every caller's frames alive."""
        assert self.failure is not None
        return StoreUnavailable(self.failure.message, **self.failure.facts)


class _Lead:
    """The lead of the next commit, which was offered to a caller that waits."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        # The ticket that the caller waits on instead, once another has begun that commit.
        self.taken: Waiting | None = None


# Settled once an operation is as durable as was promised, or with the lead of the commit that makes it so.
Waiting = Ticket[_Lead | None]


def _settle(waiting: "list[Waiting] | list[Ticket[None]]", error: StoreUnavailable | None) -> None:
    for ticket in waiting:
        if ticket.done():
            continue  # its caller left
        if error is None:
            ticket.set_result(None)
        else:
            ticket.set_exception(error)
