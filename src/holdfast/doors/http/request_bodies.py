"""The body of a request: reading it within limits of size and time, and decoding it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, MutableMapping
from typing import Any, TypeVar

import msgspec

from holdfast.doors.http.connections.asgi import Receive
from holdfast.doors.sockets.steps import StepsDone, begin
from holdfast.model.errors import InvalidArgument, PayloadTooLarge
from holdfast.telemetry.log import printable

T = TypeVar("T")

# The longest time between two parts of a body, and the minimum average rate once that much time has passed.
BODY_PATIENCE_S = 10.0
BODY_BYTES_PER_S = 4_096
# Maximum number of characters of a caller's text in an error message.
_MAX_SHOWN = 200


class CallerLeft(Exception):
    """The caller has closed its connection, so there is no one to respond to."""


class BodyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum size of a body in bytes, and that of one payload in it."""

    max_payload: int
    max_bytes: int


def limits_for(max_payload: int) -> BodyLimits:
    """Return limits that allow the largest payload in base64, and a large batch of small ones."""
    return BodyLimits(max_payload=max_payload, max_bytes=max(16 << 20, max_payload * 4 // 3 + (1 << 20)))


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int) -> bytes:
    """Return the whole body. Raise `PayloadTooLarge` above `max_bytes`, before reading it if its length is given."""
    check_encoding(headers)
    check_length(headers, max_bytes)
    message = await next_event(receive)
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        return body
    return b"".join([part async for part in body_parts(receive, max_bytes, first=message)])


async def next_event(receive: Receive) -> MutableMapping[str, Any]:
    """Return the connection's next event. Raise `InvalidArgument` if there is none within `BODY_PATIENCE_S`."""
    begun = begin(receive())
    if isinstance(begun, StepsDone):
        return begun.value
    try:
        async with asyncio.timeout(BODY_PATIENCE_S):
            return await begun
    except TimeoutError:
        raise too_slow() from None


async def body_parts(
    receive: Receive, max_bytes: int, *, first: MutableMapping[str, Any] | None = None
) -> AsyncIterator[bytes]:
    """Yield the parts of the body as they arrive. `first` is an event that was already received.

    Raise `CallerLeft`, `PayloadTooLarge` above `max_bytes`, or `InvalidArgument` if the body arrives too slowly.
    """
    loop = asyncio.get_running_loop()
    started, received, message = loop.time(), 0, first
    while True:
        if message is None:
            message = await next_event(receive)
        if message["type"] == "http.disconnect":
            raise CallerLeft
        part = message.get("body", b"")
        received += len(part)
        if received > max_bytes:
            raise too_large(max_bytes)
        overtime_s = loop.time() - started - BODY_PATIENCE_S
        if overtime_s > 0 and received < overtime_s * BODY_BYTES_PER_S:
            raise too_slow()
        yield part
        if not message.get("more_body"):
            return
        message = None


def check_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Raise `InvalidArgument` for a compressed body: its decompressed size would be unbounded."""
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.strip().lower() != b"identity":
        raise InvalidArgument("Content-Encoding is not supported; send the body uncompressed", field="Content-Encoding")


def check_length(headers: Mapping[bytes, bytes], max_bytes: int) -> None:
    """Raise `PayloadTooLarge` if the Content-Length is above `max_bytes`."""
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > max_bytes:
        raise too_large(max_bytes)


def too_large(max_bytes: int) -> PayloadTooLarge:
    """Return the error for a body above `max_bytes`."""
    return PayloadTooLarge(f"the body is larger than this server's limit of {max_bytes} bytes", limit=max_bytes)


def too_slow() -> InvalidArgument:
    """Return the error for a body that arrives too slowly."""
    return InvalidArgument(f"the body arrives too slowly; send at least {BODY_BYTES_PER_S} bytes per second")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a JSON body. Raise `InvalidArgument` for any other body, naming the wrong field if there is one."""
    try:
        # The decoder does not check that raw JSON values are UTF-8.
        if not body.isascii():
            body.decode()
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        text, field = _shown(text), _shown(path.rstrip("`").lstrip("."))
        raise InvalidArgument(f"{field or 'the body'}: {text}", field=field or "body") from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"the body is not JSON: {_shown(str(error))}", field="body") from None
    except UnicodeDecodeError:
        raise InvalidArgument("the body is not UTF-8", field="body") from None
    except RecursionError:
        raise InvalidArgument("the body is nested too deeply", field="body") from None


def _shown(text: str) -> str:
    """Return a caller's text for an error message: shortened, without line breaks and terminal escapes."""
    return printable(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
