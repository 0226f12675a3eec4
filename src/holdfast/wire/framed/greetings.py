"""The framed protocol's hellos and errors (docs/framed.md). Calls and answers stand in modules of their own."""

from typing import Any, Final

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.wire.errors import error_document, error_of

# Versions that this package speaks.
VERSION: Final = 1

# The path on the HTTP port from which a connection is upgraded, and the protocol's name there.
UPGRADE_PATH: Final = "/v1/framed"
UPGRADE_NAME: Final = "holdfast"


class ClientHello(msgspec.Struct, array_like=True, frozen=True):
    """The first frame of a client; sent again when its token changes."""

    version: int
    token: str | None = None
    program: str = ""
    program_version: str = ""


class ServerHello(msgspec.Struct, array_like=True, frozen=True):
    version: int
    server_version: str
    # The longest frame that the server reads, as its length counts it, and the calls that may be open at once.
    max_frame_bytes: int
    max_calls: int
    # A side that has heard nothing for this long sends PING.
    keepalive_ms: int
    # Bytes of an upload that may be sent before the first CREDIT.
    window_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_client_hello = msgspec.msgpack.Decoder(ClientHello)
_server_hello = msgspec.msgpack.Decoder(ServerHello)
_any = msgspec.msgpack.Decoder()
_bytes = msgspec.msgpack.Decoder(int)


def write_hello(hello: ClientHello | ServerHello) -> bytes:
    return _encode(hello)


def read_client_hello(body: bytes) -> ClientHello:
    """Raise `msgspec.DecodeError` or `UnicodeDecodeError` for anything else."""
    return _client_hello.decode(body)


def read_server_hello(body: bytes) -> ServerHello:
    """Raise `msgspec.DecodeError` or `UnicodeDecodeError` for anything else."""
    return _server_hello.decode(body)


def write_error(error: HoldfastError) -> bytes:
    """Return an error as its document, the same as over HTTP, but with the codes of the model."""
    return _encode({**error_document(error), "code": error.code})


def read_error(body: bytes) -> HoldfastError:
    """Return the error that a server's document tells of; anything else becomes `Internal`."""
    document: Any
    try:
        document = _any.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = None
    return error_of(document)


def write_credit(size: int) -> bytes:
    return _encode(size)


def read_credit(body: bytes) -> int:
    """Raise `msgspec.DecodeError` for anything but a number."""
    return _bytes.decode(body)
