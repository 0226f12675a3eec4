"""The interface between the doors of a process and the store that they serve."""

from typing import NamedTuple, Protocol

from holdfast.service.access import Caller
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.service.session import Session
from holdfast.telemetry.metrics import Turns
from holdfast.telemetry.observer import CallObserver
from holdfast.telemetry.trace import Tracing


class Backend(Protocol):
    """A store with its services, either in this process or in the store process."""

    def open_session(self, caller: Caller) -> Session:
        """Return the services as this caller may use them."""

    async def check_store(self) -> list[str]:
        """Return what is wrong although the store takes calls. Raise `StoreUnavailable` while it cannot be used."""

    def request_turns(self) -> RequestTurns:
        """Return an object that decides which request is read next. The doors of a process share one."""

    def begin_drain(self) -> None:
        """End every wait with an empty result, and let no call wait from now on."""


class DoorMetrics(CallObserver, Protocol):
    """The metrics of the server that a door belongs to."""

    # The turns of requests at the sockets of this process; None before the doors start.
    turns: Turns | None

    async def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""


class DoorTelemetry(NamedTuple):
    """The metrics and traces that doors report to."""

    metrics: DoorMetrics
    tracing: Tracing
