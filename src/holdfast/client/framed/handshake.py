"""The first bytes of a connection: the upgrade of an HTTP connection, if needed, and HELLO with the token."""

from typing import Final

from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import RemoteSettings, check_token
from holdfast.wire.framed.frames import CONNECTION, FrameKind, write_frame
from holdfast.wire.framed.greetings import UPGRADE_NAME, UPGRADE_PATH, VERSION, ClientHello, write_hello

# The longest first frame of a server (HELLO or ERROR), by its length field. A longer one is another protocol.
_LONGEST_FIRST: Final = 64 << 10
# The longest head of a response to the upgrade, in bytes.
_LONGEST_HEAD: Final = 64 << 10
_HEAD_END: Final = b"\r\n\r\n"

NOT_FRAMED: Final = "the server does not speak Holdfast's framed protocol"


class Handshake:
    """The first bytes of each connection of a client."""

    def __init__(self, settings: RemoteSettings, *, is_upgrade: bool) -> None:
        """`is_upgrade`: the address is that of the HTTP port, which is upgraded to frames."""
        address = settings.address
        self._token = settings.token
        # The token comes from a function, which is called before each call.
        self.is_renewed = callable(settings.token)
        self._fixed = b"" if self.is_renewed else self.hello(self.token())
        # The HTTP request that is sent before any frame; empty if the connection begins with frames.
        self.upgrade = b""
        if is_upgrade:
            self.upgrade = (
                f"GET {address.prefix}{UPGRADE_PATH} HTTP/1.1\r\nHost: {address.authority}\r\nUser-Agent: holdfast\r\n"
                f"Connection: Upgrade\r\nUpgrade: {UPGRADE_NAME}\r\n\r\n"
            ).encode()

    def token(self) -> str | None:
        """Return the token to use now."""
        return check_token(self._token()) if callable(self._token) else self._token

    def hello(self, token: str | None) -> bytes:
        """Return the HELLO frame, which carries the token."""
        return write_frame(FrameKind.HELLO, CONNECTION, write_hello(ClientHello(VERSION, token, "holdfast-python")))

    def due(self, state: "HandshakeState") -> bytes:
        """Return the HELLO to send before the next call; empty if the server has the current token."""
        if not self.is_renewed:
            state.is_greeted, greeted = True, state.is_greeted
            return b"" if greeted else self._fixed
        token = self.token()
        if state.is_greeted and state.token == token:
            return b""
        state.is_greeted, state.token = True, token
        return self.hello(token)


class HandshakeState:
    """The HELLO that the server of one connection was sent last."""

    __slots__ = ("is_greeted", "token")

    def __init__(self) -> None:
        self.is_greeted = False
        self.token: str | None = None


def check_first(data: bytes) -> None:
    """Raise `Lost` if the first bytes of a server cannot begin a frame."""
    if int.from_bytes(data[:4], "big") > _LONGEST_FIRST or data[:1] not in (b"\0", b""):
        raise Lost(NOT_FRAMED, was_sent=False)


def read_upgrade(received: bytes) -> bytes | None:
    """Return the bytes after the response to an upgrade; None while its head is not complete.

    Raise `Lost` for a refusal.
    """
    head, end, rest = received.partition(_HEAD_END)
    if not end:
        if len(received) > _LONGEST_HEAD:
            raise Lost("the server does not answer the upgrade to the framed protocol", was_sent=False)
        return None
    status = head.split(b"\r\n", 1)[0].split(b" ", 2)[1:2]
    if status != [b"101"]:
        shown = head.split(b"\r\n", 1)[0][:80].decode("latin-1")
        raise Lost(f"the server does not upgrade to the framed protocol ({shown})", was_sent=False)
    return rest
