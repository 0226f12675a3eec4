"""The transport to a server over HTTP, and the functions that open it."""

from collections.abc import Mapping
from typing import Any

from holdfast.client.blocking import BlockingDriver, Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.http.calls import HttpCalls
from holdfast.client.http.codec import HttpCodec
from holdfast.client.http.messages import HttpMessages
from holdfast.client.remote.calls import IsReplaced
from holdfast.client.remote.operations import RemoteOperations
from holdfast.client.remote.settings import RemoteSettings, parse_settings
from holdfast.client.transport import Transport
from holdfast.runtime import run_inline


class HttpTransport:
    """The transport to a server over HTTP."""

    def __init__(self, settings: RemoteSettings, *, in_threads: bool = False) -> None:
        self._calls = calls = HttpCalls(settings, in_threads=in_threads)
        codec = HttpCodec(calls)
        operations = RemoteOperations(calls, codec)
        self.call = operations.call
        self.messages = HttpMessages(calls, codec, operations)

    def watch(self, is_replaced: IsReplaced) -> None:
        """Ask `is_replaced` after each try without a response; true ends the call instead of repeating it."""
        self._calls.is_replaced = is_replaced

    async def close(self) -> None:
        await self._calls.close()


def open_http_on_loop(url: str, settings: Mapping[str, Any]) -> AsyncHoldfast:
    """Open a client for the running loop. No call is made yet, so the server may start later."""
    return _open(parse_settings(url, settings), in_threads=False)


def open_http(url: str, settings: Mapping[str, Any]) -> Holdfast:
    """Open a blocking client, whose calls each run in the calling thread on a socket of their own."""
    return Holdfast(_open(parse_settings(url, settings), in_threads=True), BlockingDriver(run_inline, lambda: None))


def _open(settings: RemoteSettings, *, in_threads: bool) -> AsyncHoldfast:
    async def connect() -> Transport:
        return HttpTransport(settings, in_threads=in_threads)

    return AsyncHoldfast(connect, settings.address.url)
