"""Calls into a store whose work runs on the event loop of its database driver.

A part of such a store marks its public methods `on_driver` or `on_driver_with_notices`. A caller may await them
anywhere: the work runs on the driver's loop, and its notices are reported to the listener. The store's own work, which
is on the driver's loop already, awaits the same methods, and they run directly.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.event_loop.link import LoopBridge
from holdfast.stores.event_loop.notices import Notices

T = TypeVar("T")
P = ParamSpec("P")
Work = Coroutine[Any, Any, T]


class LoopDriver:
    """The way from callers to a driver's loop. A store overrides `_run`, `_run_change` and `_report`."""

    def __init__(self) -> None:
        self.link: LoopBridge | None = None
        self._is_open = False

    def open(self, link: LoopBridge) -> None:
        """Take calls, over this link."""
        self.link = link
        self._is_open = True

    async def close(self, last: Work[None]) -> None:
        """Refuse calls from now on, wait for those in progress, run `last`, and close the link."""
        assert self.link is not None
        self._is_open = False
        await self.link.close(last)

    @property
    def is_open(self) -> bool:
        """Return whether the store takes calls."""
        return self._is_open

    async def call(self, make: Callable[[], Work[T]]) -> T:
        """Run the coroutine that `make` returns on the driver's loop, and return its result. Raise `StoreUnavailable`
        if the store is closed."""
        if self.link is not None and self.link.is_inside:
            return await make()
        return await self.opened().call(self._run(make))

    async def change(self, make: Callable[[Notices], Work[T]]) -> T:
        """Do the same as `call`, and report the notices that the coroutine has gathered, even if the caller has
        left."""
        notices = Notices()
        if self.link is not None and self.link.is_inside:
            value = await make(notices)
            self.publish(notices)
            return value
        return await self.opened().call(self._run_change(make, notices), lambda _: self._report(notices))

    def publish(self, notices: Notices) -> None:
        """From the driver's loop: report a change that no call waits for."""
        self.enter(lambda: self._report(notices))

    def enter(self, callback: Callable[[], None]) -> None:
        """From the driver's loop: run a step of the runtime. A closed store drops it."""
        if self.link is not None and self._is_open:
            self.link.enter(callback)

    def background(self, work: Work[None]) -> None:
        """Run `work` on the driver's loop without a waiting call. A closed store drops it."""
        if self.link is None or not self._is_open:
            work.close()
        else:
            self.link.background(work)

    def opened(self) -> LoopBridge:
        """Return the link. Raise `StoreUnavailable` if the store is closed."""
        if self.link is None or not self._is_open:
            raise StoreUnavailable("this store was closed; open it again")
        return self.link

    async def _run(self, make: Callable[[], Work[T]]) -> T:
        """Run a call on the driver's loop."""
        return await make()

    async def _run_change(self, make: Callable[[Notices], Work[T]], notices: Notices) -> T:
        """Run a change on the driver's loop."""
        return await make(notices)

    def _report(self, notices: Notices) -> None:
        """Report notices to the listener, in a step of the runtime."""
        raise NotImplementedError


class HasLoopDriver(Protocol):
    """A part of a store that runs on a driver's loop."""

    @property
    def driver(self) -> LoopDriver:
        """The driver on whose loop the part runs."""


Part = TypeVar("Part", bound=HasLoopDriver)


def on_driver(method: Callable[Concatenate[Part, P], Work[T]]) -> Callable[Concatenate[Part, P], Work[T]]:
    """Run the method on the loop of the part's driver."""

    @wraps(method)
    async def call(part: Part, /, *args: P.args, **named: P.kwargs) -> T:
        return await part.driver.call(lambda: method(part, *args, **named))

    return call


def on_driver_with_notices(
    method: Callable[Concatenate[Part, Notices, P], Work[T]],
) -> Callable[Concatenate[Part, P], Work[T]]:
    """Run the method on the loop of the part's driver, and report its notices to the listener afterwards.

    The method gets the notices as its first argument; its callers do not pass them.
    """

    @wraps(method)
    async def call(part: Part, /, *args: P.args, **named: P.kwargs) -> T:
        return await part.driver.change(lambda notices: method(part, notices, *args, **named))

    return call
