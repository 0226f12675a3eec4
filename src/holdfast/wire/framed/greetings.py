"""Encode and decode the framed protocol's HELLO, ERROR and CREDIT frames (docs/framed.md)."""

from typing import Any, Final

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.wire.errors import error_document, error_of

# The protocol version that this package speaks.
VERSION: Final = 1

# The path on the HTTP port that upgrades a connection, and the name of the protocol in the `Upgrade` header.
UPGRADE_PATH: Final = "/v1/framed"
UPGRADE_NAME: Final = "holdfast"


class ClientHello(msgspec.Struct, array_like=True, frozen=True):
    """The first frame of a client. The client sends it again when its token changes."""

    version: int
    token: str | None = None
    program: str = ""
    program_version: str = ""


class ServerHello(msgspec.Struct, array_like=True, frozen=True):
    """The first frame of a server."""

    version: int
    server_version: str
    # The maximum length field of a frame that the server reads, and the maximum number of open calls.
    max_frame_bytes: int
    max_calls: int
    # A side that has received nothing for this long sends PING.
    keepalive_ms: int
    # The number of bytes of an upload that the client may send before the first CREDIT.
    window_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_client_hello = msgspec.msgpack.Decoder(ClientHello)
_server_hello = msgspec.msgpack.Decoder(ServerHello)
_any = msgspec.msgpack.Decoder()
_bytes = msgspec.msgpack.Decoder(int)


def write_hello(hello: ClientHello | ServerHello) -> bytes:
    """Encode the body of a HELLO."""
    return _encode(hello)


def read_client_hello(body: bytes) -> ClientHello:
    """Decode a client's HELLO. Raise `msgspec.DecodeError` or `UnicodeDecodeError` for any other body."""
    return _client_hello.decode(body)


def read_server_hello(body: bytes) -> ServerHello:
    """Decode a server's HELLO. Raise `msgspec.DecodeError` or `UnicodeDecodeError` for any other body."""
    return _server_hello.decode(body)


def write_error(error: HoldfastError) -> bytes:
    """Encode an error as the same document as over HTTP, but with the model's error code."""
    return _encode({**error_document(error), "code": error.code})


def read_error(body: bytes) -> HoldfastError:
    """Decode an error document. Return `Internal` for any other body."""
    document: Any
    try:
        document = _any.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = None
    return error_of(document)


def write_credit(size: int) -> bytes:
    """Encode the body of a CREDIT: a number of bytes."""
    return _encode(size)


def read_credit(body: bytes) -> int:
    """Decode a CREDIT's number of bytes. Raise `msgspec.DecodeError` for any other body."""
    return _bytes.decode(body)
