"""The doors of one process, from their start to their end."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

from holdfast.doors.framed.door import FramedDoor
from holdfast.doors.http.app import HttpDoor
from holdfast.doors.http.connections.upgrades import Upgrade
from holdfast.doors.http.health import FramedOffer
from holdfast.doors.identity import Identity
from holdfast.model.errors import Unavailable
from holdfast.server.doors.backend import Backend, DoorMetrics, DoorTelemetry
from holdfast.server.doors.http import HttpServer
from holdfast.server.doors.identities import make_door
from holdfast.server.doors.listen import raise_bind_error
from holdfast.server.doors.ports import Ports, flag_of, setting_of
from holdfast.server.settings import Settings
from holdfast.service.drain import Drain
from holdfast.telemetry.trace import Tracing
from holdfast.wire.framed.greetings import UPGRADE_NAME, UPGRADE_PATH

_log = logging.getLogger("holdfast")

MakeDoor = Callable[[Backend, Identity, Drain, DoorTelemetry, Settings, FramedOffer | None], HttpDoor]

# After its grace a server cuts off the remaining calls, and waits this long for their end.
LAST_S = 2.0


class _SideDoor(Protocol):
    """A door beside HTTP, as the drain and the close of a server use it."""

    def in_hand(self) -> "set[asyncio.Future[Any]]": ...

    def describe_calls(self) -> str: ...

    def begin_drain(self) -> None: ...

    def cut_off(self) -> None: ...

    async def close(self, timeout_s: float) -> int: ...


class Doors:
    """The doors of one process on bound ports: HTTP, the framed protocol, and Cap'n Proto if it has a port."""

    def __init__(
        self, ports: Ports, settings: Settings, tls: ssl.SSLContext | None, make_door: MakeDoor = make_door
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._tls = tls
        self._make_door = make_door
        self._drain = Drain()
        self._http: HttpServer | None = None
        self._side: list[_SideDoor] = []

    async def start(self, backend: Backend, identity: Identity, metrics: DoorMetrics, tracing: Tracing) -> None:
        """Begin to listen. Raise `Unavailable` or `InvalidArgument` for a port that cannot be listened on."""
        turns = metrics.turns = backend.request_turns()
        telemetry = DoorTelemetry(metrics, tracing)
        offer = FramedOffer(self._ports.number("framed"))
        door = self._make_door(backend, identity, self._drain, telemetry, self._settings, offer)
        common: dict[str, Any] = {
            "identity": identity,
            "open_session": backend.open_session,
            "max_payload": self._settings.max_payload,
            "observer": metrics,
            "tracing": tracing,
            "drain": self._drain,
            "turns": turns,
        }
        framed = FramedDoor(**common)
        upgrade = Upgrade(UPGRADE_PATH.encode(), UPGRADE_NAME.encode(), framed.connect, door.check_host)
        self._http = HttpServer(door, self._tls, turns, upgrade)
        self._side.append(framed)
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(self.close)
            await self._listen("http", self._http.start(self._ports.sockets["http"]))
            await self._listen("framed", framed.start(self._ports.sockets["framed"], self._tls))
            if self._ports.sockets["capnp"]:
                # Imported here, because a server without this door works without pycapnp.
                from holdfast.doors.capnp.door import CapnpDoor

                capnp = CapnpDoor(**common)
                self._side.append(capnp)
                await self._listen("capnp", capnp.start(self._ports.sockets["capnp"], self._tls))
            on_failure.pop_all()

    async def _listen(self, door: str, starting: Any) -> None:
        setting = setting_of(door)
        try:
            await starting
        except OSError as error:  # another program has started to listen on the port since it was bound
            if door == "http":
                raise_bind_error(self._settings.host, self._settings.port, error)
            raise Unavailable(
                f"port {getattr(self._settings, setting)} cannot be listened on: {error.strerror}; give another "
                f"{flag_of(setting)}"
            ) from None

    async def drain(self, end_waits: Callable[[], None], deadline: float) -> bool:
        """Refuse new calls, finish those under way, and close the connections.

        `end_waits` ends the waits of the calls under way. At `deadline`, on the loop's clock, the remaining calls are
        cut off. Return whether every call has finished and every caller has read its response.
        """
        http = self._http
        assert http is not None
        grace_s = self._settings.shutdown_grace_ms / 1_000
        in_hand = http.connections.in_hand().union(*(each.in_hand() for each in self._side))
        _log.info(
            "drain_started: finishing the calls under way; a second signal ends the server at once",
            extra={"calls_in_hand": len(in_hand), "grace_s": grace_s},
        )
        self._drain.begin()
        http.connections.close_after_responses()
        for each in self._side:
            each.begin_drain()
        end_waits()

        loop = asyncio.get_running_loop()
        remaining = await _finish(in_hand, deadline - loop.time())
        if remaining:
            calls = [http.connections.describe_calls(), *(each.describe_calls() for each in self._side)]
            extra = {"calls_in_hand": len(remaining), "calls": ", ".join(filter(None, calls))}
            _log.error("calls_cut_off grace_s=%g", grace_s, extra=extra)
            # For a call this is the same as a caller that leaves: its deliveries are given back.
            http.connections.cut_off()
            for each in self._side:
                each.cut_off()
            for call in await _finish(remaining, LAST_S / 4):
                call.cancel()
        unread = await self._close_side_doors(deadline)
        unread += await http.close(deadline, at_least_s=LAST_S / 4)
        if unread:
            _log.error("responses_not_read grace_s=%g", grace_s, extra={"connections": unread})
        return not remaining and not unread

    async def _close_side_doors(self, deadline: float) -> int:
        loop = asyncio.get_running_loop()
        unread = 0
        while self._side:
            unread += await self._side.pop().close(max(deadline - loop.time(), LAST_S / 4))
        return unread

    async def close(self) -> None:
        """Stop listening, and abort the connections that a drain has not closed."""
        if self._http is not None:
            self._http.stop_listening()
        while self._side:
            await self._side.pop().close(0)


async def _finish(calls: "set[asyncio.Future[None]]", timeout_s: float) -> "set[asyncio.Future[None]]":
    """Return the calls that did not end in time."""
    if not calls:
        return set()
    _, remaining = await asyncio.wait(calls, timeout=max(timeout_s, 0))
    return remaining
