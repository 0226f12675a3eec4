"""The framed door: on a port of its own where `framed_port` asks for it, and always by upgrade on the HTTP port."""

import asyncio
import socket
import ssl
from typing import Any

from msgspec.structs import replace

from holdfast.doors.framed.door import FramedDoor
from holdfast.doors.identity import Identity
from holdfast.model.errors import Unavailable
from holdfast.server.compose import Core
from holdfast.server.door import Telemetry
from holdfast.server.listen import listening_sockets, url_of
from holdfast.server.settings import Settings
from holdfast.service.drain import Drain
from holdfast.service.limits.request_turns import RequestTurns
from holdfast.service.session import Session


class FramedServer:
    """Bound when it is made, there for upgrades when it is opened, listening when it is started."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sockets: list[socket.socket] = []
        self._door: FramedDoor | None = None
        if settings.framed_port is None:
            return
        try:
            self._sockets = listening_sockets(replace(settings, port=settings.framed_port))
        except Unavailable as error:
            raise Unavailable(error.message.replace("--port", "--framed-port")) from None

    @property
    def url(self) -> str | None:
        if not self._sockets:
            return None
        scheme, rest = url_of(self._sockets, self._settings).split(":", 1)
        return f"{'holdfasts' if scheme == 'https' else 'holdfast'}:{rest}"

    @property
    def port(self) -> int | None:
        """The port of its own."""
        return int(self._sockets[0].getsockname()[1]) if self._sockets else None

    def open(
        self, core: Core, identity: Identity, drain: Drain, telemetry: Telemetry, turns: RequestTurns
    ) -> FramedDoor:
        """Return the door, which takes connections that the HTTP port hands over."""
        self._door = FramedDoor(
            identity=identity,
            open_session=lambda caller: Session(caller, core.services),
            max_payload=self._settings.max_payload,
            observer=telemetry.metrics,
            tracing=telemetry.tracing,
            drain=drain,
            turns=turns,
        )
        return self._door

    async def start(self, tls: ssl.SSLContext | None) -> None:
        if self._door is None:
            return
        try:
            await self._door.start(self._sockets, tls)
        except OSError as error:  # another program came first to listen on the port
            raise Unavailable(
                f"port {self._settings.framed_port} cannot be listened on: {error.strerror}; give another --framed-port"
            ) from None

    def in_hand(self) -> "set[asyncio.Future[Any]]":
        return set() if self._door is None else self._door.in_hand()

    def describe_calls(self) -> str:
        return "" if self._door is None else self._door.describe_calls()

    def begin_drain(self) -> None:
        if self._door is not None:
            self._door.begin_drain()

    def cut_off(self) -> None:
        if self._door is not None:
            self._door.cut_off()

    async def close(self, timeout_s: float) -> int:
        """Return how many callers did not take their answers."""
        if self._door is None:
            return 0
        door, self._door = self._door, None
        return await door.close(timeout_s)

    def release(self) -> None:
        for each in self._sockets:
            each.close()
