"""Writing the open commit to the log, syncing it, and publishing its results. `engine.py` decides when, and on which
thread."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.clock import steady_s
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.log.commit_log import PendingSync
from holdfast.stores.rocks.log.frames import LogPartKind
from holdfast.telemetry.figures import SYNC_BOUNDS, Figures, Histogram

if TYPE_CHECKING:
    from holdfast.stores.rocks.engine.shard_links import ShardLink


class CommitWriter(ABC):
    """The writes and syncs of one database, and the failure that has stopped it."""

    def __init__(self, database: Database, *, is_os: bool) -> None:
        self.database = database
        # Operations are durable once the operating system has them, without a sync.
        self.is_os = is_os
        commit = database.commit
        # The methods of the open commit, looked up once because they are called for every key.
        self.put, self.insert, self.delete = commit.put, commit.insert, commit.delete
        self.delete_range = commit.delete_range
        self._commit = commit
        # Called before each write, to add the keys that are written once per commit: counters and the journal's block.
        self.before_write: Callable[[], None] = lambda: None
        # Called after each write, once the log has it.
        self.after_write: Callable[[], None] = lambda: None
        # Called once the open commit is durable; the operations in it have added these.
        self._to_publish: list[Callable[[], None]] = []
        # Called after all of them.
        self.after_publish: Callable[[], None] = lambda: None
        # Called once, with the cause, when a failed write or sync stops the engine.
        self.on_stop: Callable[[str], None] = lambda cause: None
        # A commit whose other half is in another shard, and the number of its frame here.
        self._link: ShardLink | None = None
        self._linked_frame = 0
        # An operation has begun and not ended.
        self._is_in_step = False
        # Set while the keys of one transition are written: a frame must never contain half of them.
        self.is_mid_change = False
        # The reason why every call is refused, if any.
        self.failure: StoreUnavailable | None = None
        # Set while the store reopens by itself after a stop. It does not during an opening or closing.
        self.reopens = False
        self._writes = 0
        self._syncs = Histogram(SYNC_BOUNDS)
        self._last_sync_s = 0.0

    @abstractmethod
    def _fail_waiting(self) -> None:
        """Fail the calls that wait for a commit, with `failure`."""

    # --- Operations --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin an operation that writes.

        Raise `StoreUnavailable` if the engine has stopped. An operation that has begun is carried out.
        """
        if self.failure is not None:
            raise self._make_refusal()
        if self._is_in_step:
            # The previous operation ended in the middle. Its half must not be written along with this one.
            self.stop(RuntimeError("an operation ended in the middle"))
            raise self._make_refusal()
        self._is_in_step = True

    def end(self) -> None:
        """End an operation without a waiting caller. The next commit includes it."""
        self._is_in_step = False

    def publish_after_commit(self, publish: Callable[[], None]) -> None:
        """Call `publish` once the open commit is durable."""
        self._to_publish.append(publish)

    # --- Writing and syncing -----------------------------------------------------------------------------------

    @property
    def _is_unsynced(self) -> bool:
        """Return whether the log has frames that are not known to be on disk."""
        log = self.database.log
        return log.synced < log.number

    def write(self, kind: LogPartKind = LogPartKind.CHANGES) -> None:
        """Write the open commit to the log. The operating system has it when this returns.

        Reads call this first, so that they see every earlier operation. Raise `StoreUnavailable` if the engine has
        stopped, or if this write fails and stops it.
        """
        if self.failure is not None:
            raise self._make_refusal()
        if self._commit.is_empty:
            if self.is_os and not self._is_in_step:
                # An operation without changes may still publish something. Otherwise the next claim would have to sync,
                # on a thread that closing does not wait for.
                self._publish_open()
            return
        if self.is_mid_change:
            self.stop(RuntimeError("a read occurred in the middle of a change"))
            raise self._make_refusal()
        self.before_write()
        try:
            self.database.write(kind)
        except Exception as error:
            self.stop(error)
            raise self._make_refusal() from error
        except BaseException:
            # Ctrl-C: memory has changes that the log may lack, so later commits must not depend on them.
            self.stop(RuntimeError("a write was interrupted"))
            raise
        self._writes += 1
        self.after_write()
        if self.is_os:
            self._publish_open()

    def write_linked(self, link: "ShardLink") -> None:
        """Write the open commit to the log as one half of a link."""
        self.write(LogPartKind.LINKED)
        self._link, self._linked_frame = link, self.database.log.number

    def sync_now(self) -> None:
        """Sync on the calling thread. Only for the opening and closing of the store, when no other caller waits."""
        log = self.database.log
        pending = log.begin_sync()
        try:
            self.database.sync(pending)
        except Exception as error:
            self.stop(error)
            raise self._make_refusal() from error
        log.end_sync(pending)

    def _sync(self, pending: PendingSync) -> None:
        """Carry out a sync, and measure it. May run on another thread, one at a time."""
        started_s = steady_s()
        self.database.sync(pending)
        self._last_sync_s = steady_s() - started_s
        self._syncs.observe(self._last_sync_s)

    def _publish_open(self) -> None:
        """Publish the results of the open commit, which is durable already."""
        to_publish = self._to_publish
        if to_publish:
            self._to_publish = []
        self._publish(to_publish)

    def _publish(self, to_publish: list[Callable[[], None]]) -> None:
        for publish in to_publish:
            publish()
        self.after_publish()

    # --- Failures ----------------------------------------------------------------------------------------------

    def close(self, failure: StoreUnavailable | None = None) -> None:
        """Refuse every later call with `failure`, or by default with the error for a closed store.

        The results of the last commit are not published.
        """
        self.failure = failure or StoreUnavailable("this store was closed: open it again")
        self._to_publish = []
        self.before_write = self.after_write = self.after_publish = lambda: None
        self.on_stop = lambda cause: None
        self._fail_waiting()

    def check(self) -> None:
        """Raise `StoreUnavailable` if the engine has stopped or was closed."""
        if self.failure is not None:
            raise self._make_refusal()

    def figures(self) -> Figures:
        """Return the engine's figures for metrics."""
        return Figures(
            is_up=self.failure is None, writes=self._writes, syncs=self._syncs, families=self.database.figures()
        )

    def stop(self, error: Exception) -> None:
        """Refuse every later call. After a failed write or sync, nothing in memory can be trusted."""
        path = self.database.path
        advice = (
            "The store reopens by itself once the disk accepts writes again; try again later"
            if self.reopens
            else "Open the store again once the disk accepts writes"
        )
        self.failure = StoreUnavailable(
            f"the store in {path} has stopped: {error}. Acknowledged calls are safe. {advice}", path=str(path)
        )
        self._fail_waiting()
        self.on_stop(str(error))

    def _make_refusal(self) -> StoreUnavailable:
        """Return a new error for each call. An error that is raised repeatedly would keep every caller's frames
        alive."""
        assert self.failure is not None
        return StoreUnavailable(self.failure.message, **self.failure.facts)
