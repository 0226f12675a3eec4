"""The transport to a server over Cap'n Proto, and the functions that open it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from holdfast.client.blocking import Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.remote.loop_thread import open_in_thread
from holdfast.client.remote.messages import RemoteMessages
from holdfast.client.remote.operations import RemoteOperations
from holdfast.client.remote.settings import RemoteSettings, parse_settings
from holdfast.client.transport import Transport
from holdfast.model.errors import InvalidArgument
from holdfast.model.extras import require_extra
from holdfast.model.parsing.store_url import without_secrets

# `capnps` uses TLS.
_SCHEMES = {"capnp": "http", "capnps": "https"}


class CapnpTransport:
    """The transport to a server over Cap'n Proto."""

    def __init__(self, url: str, settings: RemoteSettings) -> None:
        # Imported here because pycapnp is optional.
        from holdfast.client.capnp.calls import CapnpCalls
        from holdfast.client.capnp.codec import CapnpCodec

        self._calls = calls = CapnpCalls(url, settings)
        codec = CapnpCodec(calls)
        operations = RemoteOperations(calls, codec)
        self.call = operations.call
        self.messages = RemoteMessages(calls, codec, operations)

    def begin(self) -> None:
        self._calls.begin()

    async def close(self) -> None:
        self._calls.stop()
        self.messages.end_streams()
        await self._calls.close()


def open_capnp_on_loop(url: str, settings: Mapping[str, Any]) -> AsyncHoldfast:
    """Open a client for the running loop. No call is made yet, so the server may start later."""
    parsed = parse_capnp_settings(url, settings)

    async def connect() -> Transport:
        return CapnpTransport(url, parsed)

    return AsyncHoldfast(connect, without_secrets(url))


def open_capnp(url: str, settings: Mapping[str, Any]) -> Holdfast:
    """Open a blocking client, whose calls run on an event loop in a thread of its own."""
    return open_in_thread(open_capnp_on_loop(url, settings))


def parse_capnp_settings(url: str, settings: Mapping[str, Any]) -> RemoteSettings:
    """Return the settings of a connection. Raise `InvalidArgument`, also for `pool`, which does not apply."""
    scheme, _, rest = url.partition("://")
    if "pool" in settings:
        raise InvalidArgument("pool is only for http:// URLs: here one connection carries many calls", field="pool")
    try:
        parts = urlsplit(url)
        has_port = parts.port is not None
    except ValueError as error:
        raise InvalidArgument(f"{url[:200]!r} is not a URL: {error}", field="url") from None
    if not has_port and not (parts.username or parts.password):
        raise InvalidArgument(f"{url[:200]!r} has no port: give capnp://host:port", field="url")
    if parts.path.strip("/"):
        raise InvalidArgument(f"{url[:200]!r} has a path: give capnp://host:port", field="url")
    require_extra("capnp", "capnp://", field="url")
    return parse_settings(f"{_SCHEMES[scheme.lower()]}://{rest}", settings)
