"""The transport to a server over the framed protocol, and the functions that open it."""

from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.framed.calls import FramedCalls
from holdfast.client.framed.codec import FramedCodec
from holdfast.client.framed.messages import FramedMessages
from holdfast.client.remote.calls import IsReplaced
from holdfast.client.remote.operations import RemoteOperations
from holdfast.client.remote.settings import RemoteSettings, parse_settings
from holdfast.client.transport import Transport
from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.store_url import without_secrets
from holdfast.runtime import run_inline

# `holdfasts` uses TLS.
_SCHEMES = {"holdfast": "http", "holdfasts": "https"}


class FramedTransport:
    """The transport to a server over the framed protocol."""

    def __init__(
        self, url: str, settings: RemoteSettings, *, in_threads: bool = False, is_upgrade: bool = False
    ) -> None:
        """`is_upgrade`: the address in the settings is that of the HTTP port, which is upgraded to frames."""
        self._calls = calls = FramedCalls(url, settings, in_threads=in_threads, is_upgrade=is_upgrade)
        codec = FramedCodec(calls)
        operations = RemoteOperations(calls, codec)
        self.call = operations.call
        self.messages = FramedMessages(calls, codec, operations)

    @classmethod
    async def reach(cls, url: str, settings: RemoteSettings, limit_s: float, *, is_upgrade: bool) -> Self:
        """Return a connected transport for the running loop. Raise `Lost` without a hello from the server in time."""
        transport = cls(url, settings, is_upgrade=is_upgrade)
        try:
            await transport._calls.reach(limit_s)
        except BaseException:
            await transport.close()
            raise
        return transport

    def watch(self, is_replaced: IsReplaced) -> None:
        """Ask `is_replaced` after each try without a response; true ends the call instead of repeating it."""
        self._calls.is_replaced = is_replaced

    async def close(self) -> None:
        await self._calls.close()


def open_framed_on_loop(url: str, settings: Mapping[str, Any]) -> AsyncHoldfast:
    """Open a client for the running loop. No call is made yet, so the server may start later."""
    return _open(url, parse_framed_settings(url, settings), in_threads=False)


def open_framed(url: str, settings: Mapping[str, Any]) -> Holdfast:
    """Open a blocking client, whose calls each run in the calling thread on a socket of their own."""
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

    return AsyncHoldfast(connect, without_secrets(url))
