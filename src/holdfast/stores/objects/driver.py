"""Run calls of the object store on its event loop, and publish their notices even when a call fails."""

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
    """The object store's loop driver: converts conflicts and bucket errors, counts events for the metrics."""

    listener: Listener

    def __init__(self, failed: Callable[[], None], appended: Callable[[], None]) -> None:
        """Create a closed driver.

        `failed` is called in a step of the runtime after a change that raised. `appended` is called on the driver's
        loop after a change that produced journal events.
        """
        super().__init__()
        self._failed = failed
        self._appended = appended
        self._tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return the events counted since the previous call, by queue."""
        taken, self._tallies = self._tallies, defaultdict(Counter)
        return taken

    async def _run(self, make: Callable[[], Work[T]]) -> T:
        """Run a call. A conflict or a failed request that escapes it becomes `StoreUnavailable`: callers and background
        loops expect only the errors of the store contract."""
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
            # A part of the change may have been written before the error, so its notices are published too.
            assert self.link is not None
            self.link.enter(lambda: self._report_failed(notices))
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

    def _report_failed(self, notices: Notices) -> None:
        self._report(notices)
        self._failed()
