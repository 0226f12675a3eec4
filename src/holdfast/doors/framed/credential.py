"""The credential of a connection: the token of its latest HELLO, or its client certificate."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.doors.identity import AUTHORIZATION, PeerCertificate
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.doors.framed.connection import FramedConnection

_log = logging.getLogger("holdfast")

_NO_HEADERS: Mapping[bytes, bytes] = {}


class Credential:
    """The credential of one connection.

    Each call is checked by it, and so is the connection before it may send a large frame. `is_known` is true once a
    check has succeeded; the connection's large frames may then be held in memory.
    """

    __slots__ = ("_checking", "_connection", "headers", "is_known", "peer")

    def __init__(self, connection: "FramedConnection") -> None:
        self._connection = connection
        self._checking: asyncio.Task[None] | None = None
        # The credential as HTTP headers, which the identity reads.
        self.headers = _NO_HEADERS
        self.peer: PeerCertificate | None = None
        self.is_known = connection.door.sessions.anyone is not None

    def take_token(self, token: str | None) -> None:
        """Replace the token; None for none."""
        self.headers = (
            _NO_HEADERS if token is None else {AUTHORIZATION: b"Bearer " + token.encode("latin-1", "replace")}
        )

    @property
    def key(self) -> bytes | None:
        """The token, by which the turns of requests remember the tenant; None without a token."""
        return self.headers.get(AUTHORIZATION)

    @property
    def is_checking(self) -> bool:
        """Return whether a check is in progress."""
        return self._checking is not None

    def check(self) -> None:
        """Check the credential now. The connection ends if it is not valid."""
        if self._checking is None:
            self._checking = self._connection.loop.create_task(self._check())
            self._checking.add_done_callback(self._end_check)
            self._connection.balance_reading()

    def stop(self) -> None:
        """Cancel the check in progress, because the connection is lost."""
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self) -> None:
        try:
            await self._connection.door.sessions.identify(self.headers, self.peer)
        except HoldfastError as error:
            self._connection.end_with(error)
        else:
            self.is_known = True

    def _end_check(self, checking: "asyncio.Task[None]") -> None:
        self._checking = None
        if not checking.cancelled() and (error := checking.exception()) is not None:
            _log.error("credential_check_failed", exc_info=error)
            self._connection.abort()
        self._connection.balance_reading()
