"""The only writer of a database. Operations add their changes to one open commit, which serves all waiting callers.

    operation   changes memory, adds to the open commit, and registers what to publish
    write       the open commit goes to the log as one frame; a killed process loses none of it
    sync        one sync of the log covers everything written so far
    publish     claims can find the commit's messages, and its callers get their responses

With durability "os" there is no sync. The first operation of a loop's turn is written at once, and all others of the
turn together at its end. So a lone caller does not wait, and many callers share a write.

With durability "fsync", claims and extensions return after the write, and everything else after the sync. Blocking
callers sync on their own threads: one of them leads a commit for all waiting callers, and then offers leadership of the
next commit to the first caller that arrived meanwhile. While syncs take long, those of a lone caller run on another
thread (`sync_pacing.py`).
"""

from contextlib import suppress
from enum import StrEnum

from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime, Ticket
from holdfast.stores.rocks.engine.commit_tickets import LeaderOffer, Waiting, resolve_tickets
from holdfast.stores.rocks.engine.commit_writer import CommitWriter
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.sync_pacing import SyncPacing


class Durability(StrEnum):
    """The moment at which a change counts as durable."""

    # After a sync: a power cut loses no acknowledged change.
    FSYNC = "fsync"
    # After a write to the operating system: a killed process loses no acknowledged change, but a power cut may.
    OS = "os"


class Engine(CommitWriter):
    """The only writer of one database: it decides when open commits are written and synced, and on which thread."""

    def __init__(
        self, database: Database, runtime: Runtime, durability: Durability, *, shard: int = 0, is_only: bool = True
    ) -> None:
        """`shard`: the number of the shard; its syncs run one after the other on the runtime's lane of that number.

        `is_only`: no other engine serves callers beside this one.
        """
        super().__init__(database, is_os=durability is Durability.OS)
        self._runtime = runtime
        self.shard = shard
        self._is_only = is_only
        # Tickets of the callers that wait for the next commit.
        self._waiting: list[Waiting] = []
        # An offer to lead the next commit, to a caller that has not woken up yet.
        self._offer: LeaderOffer | None = None
        self._is_syncing = False
        # Other callers waited for the last sync, or began to wait during it.
        self._has_other_callers = False
        # A sync at the end of the loop's turn has been requested.
        self._is_sync_due = False
        # Callers of `synced` that wait for the end of a sync in progress.
        self._waiting_for_sync: list[Ticket[None]] = []
        # Durability "os": an operation of the current turn has been written, and the others wait for its end.
        self._is_turn_taken = False
        self._pacing = SyncPacing()

    # --- The end of an operation -------------------------------------------------------------------------------

    def written(self) -> None:
        """End an operation that returns once the operating system has it."""
        self._is_in_step = False
        self.write()
        if self._to_publish and not self._is_syncing and self._offer is None:
            # No caller waits for the sync, but waiters may need what it publishes. A caller that was offered leadership
            # will sync.
            self._begin_sync()

    async def committed(self) -> None:
        """End an operation, and return once it is durable as configured."""
        ticket = self.commit()
        if ticket is not None:
            await self.wait(ticket)

    async def wait(self, ticket: Waiting) -> None:
        """Return once the operation of a ticket that `commit` returned is durable."""
        while True:
            try:
                offer = await ticket
            except BaseException:
                self._withdraw(ticket)
                raise
            followed = None if offer is None else self._accept_offer(offer)
            if followed is None:
                return
            ticket = followed

    def commit(self) -> Waiting | None:
        """End an operation. Return a ticket to `wait` on until the operation is durable, or None if it is already."""
        self._is_in_step = False
        if self.is_os:
            if not self._is_turn_taken:
                self._take_turn()
                return None
        # Even without changes, wait for a sync in progress: the response may depend on data that it syncs.
        elif not self._is_syncing:
            if self._commit.is_empty and not self._is_unsynced:
                self._publish_open()
                return None
            if self._may_lead:
                self._commit_on_caller()
                return None
        return self._wait_for_commit()

    def _commit_on_caller(self) -> None:
        """Write and sync on the calling thread, and then offer leadership of the next commit to a waiting caller.

        Other callers prepare that commit meanwhile. Handing a sync to another thread and back would cost as much as a
        short sync.
        """
        self.write()
        log = self.database.log
        # Usually no other caller waits, and this check saves a function call.
        waiting = self._take_waiting() if self._waiting or self._offer is not None else []
        to_publish, self._to_publish = self._to_publish, []
        if self._is_unsynced:
            pending = log.begin_sync()
            self._is_syncing = True
            try:
                self._runtime.run_unlocked(lambda: self._sync(pending))
            except Exception as error:
                self._waiting = waiting + self._waiting
                if self.failure is None:
                    self.stop(error)
                else:
                    self._fail_waiting()
                raise self._make_refusal() from error
            except BaseException:  # Ctrl-C: the other callers wait for the next sync
                self._waiting, self._to_publish = waiting + self._waiting, to_publish + self._to_publish
                raise
            finally:
                self._is_syncing = False
                self._has_other_callers = bool(waiting or self._waiting)
                if self._waiting_for_sync:
                    self._wake_synced()
                if self._waiting or self._to_publish:
                    self._offer_leadership()
            if self.failure is not None:
                # The engine was stopped or closed during the sync. Nothing in memory is published any more.
                resolve_tickets(waiting, self.failure)
                raise self._make_refusal()
            log.end_sync(pending)
            if not self._has_other_callers:
                self._pacing.note(self._last_sync_s)
        self._publish(to_publish)
        if waiting:
            resolve_tickets(waiting, None)

    def _offer_leadership(self) -> None:
        """Let a waiting caller lead the next commit, or else sync on another thread."""
        if self.failure is not None or self._is_syncing:
            return
        if self._link is None and self._runtime.callers_have_threads:
            while self._waiting:
                ticket = self._waiting.pop(0)
                if not ticket.done():
                    self._offer = LeaderOffer()
                    ticket.set_result(self._offer)
                    return
        if self._waiting or self._to_publish:
            self._sync_on_thread()

    def _accept_offer(self, offer: LeaderOffer) -> Waiting | None:
        """Lead the next commit, or return the ticket of the commit that includes the caller's operation."""
        if offer.joined is not None:
            return offer.joined
        self._offer = None
        self.check()
        if self._may_lead:
            self._commit_on_caller()
            return None
        return self._wait_for_commit()

    def _withdraw(self, ticket: Waiting) -> None:
        """Stop waiting on a ticket (Ctrl-C). If the caller was offered leadership, offer it to another one."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        elif self._offer is not None and ticket.exception() is None and ticket.result() is self._offer:
            self._offer = None
            self._offer_leadership()

    def _take_waiting(self) -> list[Waiting]:
        """Return the tickets of all operations in the commit that now begins."""
        waiting, self._waiting = self._waiting, []
        if self._offer is not None:
            # The caller that was offered leadership has not woken up yet. Its operation is part of this commit too.
            self._offer.joined = self._runtime.ticket()
            waiting.append(self._offer.joined)
            self._offer = None
        return waiting

    def _commit_on_loop(self) -> None:
        """Write and sync on the loop's own thread, at the end of a turn."""
        self.write()
        if self._is_unsynced:
            pending = self.database.log.begin_sync()
            try:
                self._sync(pending)
            except Exception as error:
                self.stop(error)
                raise self._make_refusal() from error
            self.database.log.end_sync(pending)
            self._pacing.note(self._last_sync_s)
        self._publish_open()

    @property
    def _may_lead(self) -> bool:
        """Return whether the calling thread may sync.

        A lone caller may not while such syncs are paused. No caller may while a link waits for another shard.
        """
        return (
            self._runtime.may_run_unlocked
            and self._link is None
            and (self._has_other_callers or not self._pacing.is_paused)
        )

    def _may_sync_on_loop(self) -> bool:
        """Return whether the loop's thread may sync.

        It may not if other engines exist, because their callers would wait for this engine's disk.
        """
        return self._is_only and not self._pacing.is_paused

    def _wait_for_commit(self) -> Waiting:
        """Return a ticket for the next commit, and make sure that this commit will happen."""
        ticket = self._runtime.ticket()
        self._waiting.append(ticket)
        if not self.is_os and not self._is_syncing:
            self._begin_sync()
        return ticket

    def _begin_sync(self) -> None:
        """Sync for the waiting callers: on the loop's thread if one caller waits and syncs are short, and otherwise on
        another thread.

        The number of callers is known only at the end of the turn.
        """
        if self._runtime.may_block_at_turn_end and self._may_sync_on_loop():
            if not self._is_sync_due:
                self._is_sync_due = True
                self._runtime.at_turn_end(self._sync_at_turn_end)
            return
        self._sync_on_thread()

    def _sync_on_thread(self) -> None:
        """Commit and sync for the waiting callers on another thread."""
        self._is_syncing = True
        self._runtime.spawn(self._sync_waiting())

    def _sync_at_turn_end(self) -> None:
        """Commit for the caller that waits. If several callers wait by now, sync on another thread."""
        self._is_sync_due = False
        if self._is_syncing or self.failure is not None:
            return  # another sync serves the waiting callers, or they have failed
        if len(self._waiting) > 1:
            self._sync_on_thread()  # several callers have other work to do meanwhile
            return
        try:
            self._commit_on_loop()
        except StoreUnavailable:
            return  # stopping has failed all waiting callers
        waiting = self._take_waiting()
        resolve_tickets(waiting, None)

    def _take_turn(self) -> None:
        """Write the first operation of a turn at once. The others of this turn are written at its end."""
        if self._runtime.has_turns:
            self._is_turn_taken = True
            self._runtime.at_turn_end(self._end_turn)
        self.write()

    def _end_turn(self) -> None:
        """Write the other operations of this turn."""
        self._is_turn_taken = False
        if self._waiting and self.failure is None:
            try:
                self.write()
            except StoreUnavailable:
                return  # the failed write has failed all waiting callers
            waiting = self._take_waiting()
            resolve_tickets(waiting, None)

    # --- Background syncs --------------------------------------------------------------------------------------

    async def _sync_waiting(self) -> None:
        """Commit repeatedly until no caller waits, or until the callers can sync for each other."""
        try:
            while (self._waiting or self._to_publish) and self.failure is None:
                try:
                    self.write()
                except StoreUnavailable:
                    return  # the failed write has failed all waiting callers
                waiting = self._take_waiting()
                to_publish, self._to_publish = self._to_publish, []
                if self._is_unsynced and not await self._sync_written():
                    self._waiting = waiting + self._waiting
                    self._fail_waiting()
                    return
                self._wake_synced()
                self._publish(to_publish)
                resolve_tickets(waiting, None)
                self._has_other_callers = len(waiting) > 1 or bool(self._waiting)
                if self._waiting and self._runtime.callers_have_threads:
                    break  # these callers sync for each other
        finally:
            self._is_syncing = False
            self._wake_synced()
        if self._waiting or self._to_publish:
            self._offer_leadership()

    async def _sync_written(self) -> bool:
        """Sync everything written so far. Return False if that failed, which stops the engine."""
        log = self.database.log
        pending = log.begin_sync()
        try:
            await self._runtime.offload(lambda: self._sync(pending), thread=self.shard)
        except Exception as error:
            if self.failure is None:
                self.stop(error)
            return False
        if self._link is not None and pending.number >= self._linked_frame:
            await self._link.wait_for_other_half(self)
            if self.failure is not None:
                return False
            self._link = None
        log.end_sync(pending)
        return True

    def sync_soon(self) -> None:
        """Sync in the background, if anything is not synced."""

        async def sync() -> None:
            with suppress(StoreUnavailable):  # callers that wait for it have failed
                await self.synced()

        self._runtime.spawn(sync())

    async def synced(self) -> None:
        """Return once everything written so far is on disk.

        Raise `StoreUnavailable` if the engine has stopped.
        """
        log = self.database.log
        # Other callers continue to write. Waiting for their writes too might never end.
        upto = log.number
        while log.synced < upto:
            if self._is_syncing:
                # Only one sync runs at a time: wait for the end of this one, and then sync again.
                ticket = self._runtime.ticket()
                self._waiting_for_sync.append(ticket)
                await ticket
            else:
                self._is_syncing = True
                try:
                    await self._sync_written()
                finally:
                    self._is_syncing = False
                    self._wake_synced()
                if not self.is_os and (self._waiting or self._to_publish):
                    self._sync_on_thread()
            self.check()

    def _fail_waiting(self) -> None:
        """Fail the calls that wait for a commit, and release the other half of a link."""
        waiting = self._take_waiting()
        resolve_tickets(waiting, self.failure)
        if self._link is not None:
            self._link.release()

    def _wake_synced(self) -> None:
        """Wake the callers of `synced`."""
        if self._waiting_for_sync:
            waiting, self._waiting_for_sync = self._waiting_for_sync, []
            resolve_tickets(waiting, None)
