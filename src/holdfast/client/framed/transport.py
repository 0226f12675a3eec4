"""The transport to a server over the framed protocol, and how it is opened."""

from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.framed.calls import FramedCalls
from holdfast.client.framed.codec import FramedCodec
from holdfast.client.framed.messages import FramedMessages
from holdfast.client.remote.operations import RemoteOperations
from holdfast.client.remote.settings import RemoteSettings, parse_settings
from holdfast.client.transport import Transport
from holdfast.model.errors import InvalidArgument
from holdfast.runtime import run_inline

# holdfasts is over TLS.
_SCHEMES = {"holdfast": "http", "holdfasts": "https"}


class FramedTransport:
    def __init__(
        self, url: str, settings: RemoteSettings, *, in_threads: bool = False, is_upgrade: bool = False
    ) -> None:
        """`is_upgrade`: the address in the settings is that of the HTTP port."""
        self._calls = calls = FramedCalls(url, settings, in_threads=in_threads, is_upgrade=is_upgrade)
        codec = FramedCodec(calls)
        operations = RemoteOperations(calls, codec)
        self.call = operations.call
        self.messages = FramedMessages(calls, codec, operations)

    @classmethod
    async def reach(cls, url: str, settings: RemoteSettings, limit_s: float, *, is_upgrade: bool) -> Self:
        """Return one for the running loop that is connected. Raise `Lost` if the server says no hello in time."""
        transport = cls(url, settings, is_upgrade=is_upgrade)
        try:
            await transport._calls.reach(limit_s)
        except BaseException:
            await transport.close()
            raise
        return transport

    async def close(self) -> None:
        await self._calls.close()


def open_framed_on_loop(url: str, settings: Mapping[str, Any]) -> AsyncHoldfast:
    """Open for the running loop. No call is made yet: the server may come up later."""
    return _open(url, parse_framed_settings(url, settings), in_threads=False)


def open_framed(url: str, settings: Mapping[str, Any]) -> Holdfast:
    """Open for blocking use: each call is made in the calling thread, on a socket of its own."""
    inner = _open(url, parse_framed_settings(url, settings), in_threads=True)
    return Holdfast(inner, BlockingDriver(run_inline, lambda: None))


def parse_framed_settings(url: str, settings: Mapping[str, Any]) -> RemoteSettings:
    """Return the settings of a connection to a framed port. Raise `InvalidArgument`."""
    scheme, _, rest = url.partition("://")
    try:
        parts = urlsplit(url)
        has_port = parts.port is not None
    except ValueError as error:
        raise InvalidArgument(f"{url[:200]!r} is not a URL: {error}", field="url") from None
    if parts.username is None and parts.password is None:
        if not has_port:
            raise InvalidArgument(f"{url[:200]!r} has no port: give {scheme}://host:port", field="url")
        if parts.path.strip("/"):
            raise InvalidArgument(f"{url[:200]!r} has a path: give {scheme}://host:port", field="url")
    return parse_settings(f"{_SCHEMES[scheme.lower()]}://{rest}", settings)


def _open(url: str, settings: RemoteSettings, *, in_threads: bool) -> AsyncHoldfast:
    async def connect() -> Transport:
        return FramedTransport(url, settings, in_threads=in_threads)

    return AsyncHoldfast(connect)
