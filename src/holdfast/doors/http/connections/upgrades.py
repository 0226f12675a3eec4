"""Upgrade a connection to another protocol, of which this door knows only the name (RFC 9110, 7.8)."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.doors.http.connections.request_heads import RefusedRequest, RequestHead
from holdfast.doors.http.origin import check_origin
from holdfast.model.errors import Forbidden


class Upgrade(NamedTuple):
    """A protocol that a connection may be upgraded to by a GET of `path`.

    `make` returns the asyncio protocol of a connection, which is then connected like a new one. `check_host` raises
    `Forbidden` for a request whose `Host` is not one of the server's names.
    """

    path: bytes
    name: bytes
    make: Callable[[], asyncio.Protocol]
    check_host: Callable[[Mapping[bytes, bytes]], None]

    @property
    def response(self) -> bytes:
        """Return the response that accepts the upgrade."""
        return b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: %b\r\n\r\n" % self.name

    def is_requested_by(self, head: RequestHead) -> bool:
        """Return whether a request asks for this upgrade.

        Raise `RefusedRequest` if it does but has a body, or its host or origin is not allowed.
        """
        if not head.is_upgrade or head.target != self.path or head.method != "GET":
            return False
        if head.headers.get(b"upgrade", b"").strip().lower() != self.name:
            return False
        try:
            self.check_host(head.headers)
            check_origin(head.headers)
        except Forbidden as error:
            raise RefusedRequest(403, error.message) from None
        if head.has_body:
            raise RefusedRequest(400, "an upgrade request must not have a body")
        return True
