"""The Cap'n Proto door beside the HTTP one, where `capnp_port` asks for it."""

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.doors.identity import Identity
from holdfast.model.errors import Unavailable
from holdfast.model.extras import require_extra
from holdfast.server.compose import Core
from holdfast.server.door import Telemetry
from holdfast.server.listen import listening_sockets, url_of
from holdfast.server.settings import Settings
from holdfast.service.drain import Drain
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.service.session import Session

if TYPE_CHECKING:
    from holdfast.doors.capnp.door import CapnpDoor


class CapnpServer:
    """Bound when it is made, listening when it is started. Without a port it is nothing, and does nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sockets: list[socket.socket] = []
        self._door: CapnpDoor | None = None
        if settings.capnp_port is None:
            return
        require_extra("capnp", "capnp_port", setting="capnp_port")
        try:
            self._sockets = listening_sockets(replace(settings, port=settings.capnp_port))
        except Unavailable as error:
            raise Unavailable(error.message.replace("--port", "--capnp-port")) from None

    @property
    def url(self) -> str | None:
        if not self._sockets:
            return None
        return url_of(self._sockets, self._settings).replace("http", "capnp", 1)

    async def start(
        self,
        core: Core,
        identity: Identity,
        drain: Drain,
        telemetry: Telemetry,
        tls: ssl.SSLContext | None,
        turns: RequestTurns,
    ) -> None:
        if not self._sockets:
            return
        # Imported here: a server without this door need not have pycapnp.
        from holdfast.doors.capnp.door import CapnpDoor

        self._door = CapnpDoor(
            identity=identity,
            open_session=lambda caller: Session(caller, core.services),
            max_payload=self._settings.max_payload,
            observer=telemetry.metrics,
            tracing=telemetry.tracing,
            drain=drain,
            turns=turns,
        )
        try:
            await self._door.start(self._sockets, tls)
        except OSError as error:  # another program came first to listen on the port
            raise Unavailable(
                f"port {self._settings.capnp_port} cannot be listened on: {error.strerror}; give another --capnp-port"
            ) from None

    def in_hand(self) -> "set[asyncio.Future[Any]]":
        return set() if self._door is None else self._door.in_hand()

    def begin_drain(self) -> None:
        """Do nothing: each new call is refused, which tells its caller."""

    def describe_calls(self) -> str:
        """Return nothing: calls of this door have no names that could be shown."""
        return ""

    def cut_off(self) -> None:
        if self._door is not None:
            self._door.cut_off()

    async def close(self, timeout_s: float) -> int:
        """How many callers did not take their answers."""
        if self._door is None:
            return 0
        door, self._door = self._door, None
        return await door.close(timeout_s)

    def release(self) -> None:
        for each in self._sockets:
            each.close()
