"""The driver of the PostgreSQL store: follows queues to the databases that own them, and notifies other servers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.stores.contract import Listener
from holdfast.stores.event_loop.driver import LoopDriver, Work
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.postgres.cluster.cluster import PostgresCluster, QueueMoved
from holdfast.stores.postgres.queues.registry import QueueRegistry

T = TypeVar("T")


class PostgresDriver(LoopDriver):
    """The way from callers to the event loop of the databases."""

    listener: Listener

    def __init__(
        self, cluster: PostgresCluster, directory: QueueRegistry, notify_peers: Callable[[Notices], None]
    ) -> None:
        """`notify_peers` is called on the driver's loop with notices for the other servers."""
        super().__init__()
        self._cluster = cluster
        self._directory = directory
        self._notify_peers = notify_peers
        self._tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return the events counted since the previous call."""
        taken, self._tallies = self._tallies, defaultdict(Counter)
        return taken

    def publish(self, notices: Notices) -> None:
        """From the driver's loop: report a change to the other servers and to the listener."""
        if self.is_open:
            self._notify_peers(notices)
            super().publish(notices)

    def receive(self, ref: QueueRef | None, at_ms: int) -> None:
        """From the driver's loop: report a change by another server to the listener. `ref` is None for a change of a
        schedule."""

        def report() -> None:
            if ref is None:
                self.listener.scheduled(self._cluster.caller_time(at_ms))
            elif self.listener.is_waited_for(ref):
                self.listener.ready(ref, self._cluster.caller_time(at_ms))

        self.enter(report)

    async def _run(self, make: Callable[[], Work[T]]) -> T:
        try:
            return await make()
        except QueueMoved as moved:
            # The caller's next attempt looks for the queue where it is then.
            await self._directory.follow(moved.ref)
            raise

    async def _run_change(self, make: Callable[[Notices], Work[T]], notices: Notices) -> T:
        try:
            value = await make(notices)
        except QueueMoved as moved:
            if not await self._directory.follow(moved.ref):
                raise
            value = await make(notices)
        self._notify_peers(notices)
        return value

    def _report(self, notices: Notices) -> None:
        callers = self._cluster.caller_time
        for ref, counted in notices.tallies.items():
            self._tallies[ref] += counted
        for ref, at_ms in notices.ready_at.items():
            self.listener.ready(ref, callers(at_ms))
        if notices.deadline_at is not None:
            self.listener.deadline(callers(notices.deadline_at))
        if notices.scheduled_at is not None:
            self.listener.scheduled(callers(notices.scheduled_at))
