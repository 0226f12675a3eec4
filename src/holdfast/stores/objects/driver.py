"""The driver of the object store: names the bucket's errors, and tells the notices even of a call that failed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.stores.contract import Listener
from holdfast.stores.event_loop.driver import LoopDriver, Work
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import ObjectMissing, PreconditionFailed, Unanswered
from holdfast.stores.objects.buckets.retries import Busy

T = TypeVar("T")


class ObjectDriver(LoopDriver):
    listener: Listener

    def __init__(self, failed: Callable[[], None], appended: Callable[[], None]) -> None:
        """`failed` is called in a step of the runtime after a change that failed, and `appended` on the driver's loop
        after one that appended to the journal."""
        super().__init__()
        self._failed = failed
        self._appended = appended
        self._tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return the events counted since the previous call."""
        taken, self._tallies = self._tallies, defaultdict(Counter)
        return taken

    async def _run(self, make: Callable[[], Work[T]]) -> T:
        """Raise `StoreUnavailable` for a conflict or a failed request that escaped the call: callers and background
        loops expect errors of the contract alone."""
        try:
            return await make()
        except (PreconditionFailed, Busy) as error:
            raise StoreUnavailable(f"another process changed the same documents; try again ({error})") from error
        except (ObjectMissing, Unanswered) as error:
            raise StoreUnavailable(f"the bucket failed in the middle of a call; try again ({error})") from error

    async def _run_change(self, make: Callable[[Notices], Work[T]], notices: Notices) -> T:
        try:
            return await self._run(lambda: make(notices))
        except BaseException:
            # Part of it may hold all the same.
            assert self.link is not None
            self.link.enter(lambda: self._tell_failed(notices))
            raise
        finally:
            if notices.tallies:
                self._appended()

    def _report(self, notices: Notices) -> None:
        for ref, counted in notices.tallies.items():
            self._tallies[ref] += counted
        for ref, at_ms in notices.ready_at.items():
            self.listener.ready(ref, at_ms)
        if notices.deadline_at is not None:
            self.listener.deadline(notices.deadline_at)
        if notices.scheduled_at is not None:
            self.listener.scheduled(notices.scheduled_at)

    def _tell_failed(self, notices: Notices) -> None:
        self._report(notices)
        self._failed()
