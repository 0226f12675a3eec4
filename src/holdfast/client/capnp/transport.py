"""The transport to a server's Cap'n Proto door, and how it is opened."""

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

# capnps is over TLS.
_SCHEMES = {"capnp": "http", "capnps": "https"}


class CapnpTransport:
    def __init__(self, url: str, settings: RemoteSettings) -> None:
        # Imported here: whoever has no such URL need not have pycapnp.
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
        self.messages.let_go()
        await self._calls.close()


def open_capnp_on_loop(url: str, settings: Mapping[str, Any]) -> AsyncHoldfast:
    """No call is made yet: the server may come up later."""
    parsed = parse_capnp_settings(url, settings)

    async def connect() -> Transport:
        return CapnpTransport(url, parsed)

    return AsyncHoldfast(connect)


def open_capnp(url: str, settings: Mapping[str, Any]) -> Holdfast:
    return open_in_thread(open_capnp_on_loop(url, settings))


def parse_capnp_settings(url: str, settings: Mapping[str, Any]) -> RemoteSettings:
    """The settings of a connection to a server, but for the number of connections."""
    scheme, _, rest = url.partition("://")
    if "pool" in settings:
        raise InvalidArgument("pool is for http:// alone: a connection carries many calls here", field="pool")
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
