"""Who is on a connection: the token of its latest HELLO, or its certificate."""

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
    """Keeps what a caller says of itself. Every call is checked by it; a large frame is, before it is read.

    `is_known`: it was good once, so that its caller may have large frames kept in memory.
    """

    __slots__ = ("_checking", "_connection", "headers", "is_known", "peer")

    def __init__(self, connection: "FramedConnection") -> None:
        self._connection = connection
        self._checking: asyncio.Task[None] | None = None
        # As HTTP's.
        self.headers = _NO_HEADERS
        self.peer: PeerCertificate | None = None
        self.is_known = connection.door.anyone is not None

    def take_token(self, token: str | None) -> None:
        self.headers = (
            _NO_HEADERS if token is None else {AUTHORIZATION: b"Bearer " + token.encode("latin-1", "replace")}
        )

    @property
    def key(self) -> bytes | None:
        """The token as it is remembered by whose turns it takes."""
        return self.headers.get(AUTHORIZATION)

    @property
    def is_checking(self) -> bool:
        return self._checking is not None

    def check(self) -> None:
        """Check it now; its connection ends if it is not good."""
        if self._checking is None:
            self._checking = self._connection.loop.create_task(self._check())
            self._checking.add_done_callback(self._end_check)
            self._connection.balance_reading()

    def stop(self) -> None:
        """Forget a check under way: the connection is lost."""
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self) -> None:
        try:
            await self._connection.door.session_of(self.headers, self.peer)
        except HoldfastError as error:
            self._connection.end_with(error)
        else:
            self.is_known = True

    def _end_check(self, checking: "asyncio.Task[None]") -> None:
        self._checking = None
        if not checking.cancelled() and (error := checking.exception()) is not None:
            _log.error("a credential could not be checked", exc_info=error)
            self._connection.abort()
        self._connection.balance_reading()
