"""One connection to a server, made when it is first needed and again after it was lost."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from typing import Any

import capnp

from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import RemoteSettings, check_token
from holdfast.model.errors import Internal
from holdfast.wire.capnp.frames import Frames
from holdfast.wire.capnp.schema import SCHEMA, kj_loop, read_error
from holdfast.wire.capnp.stream import Stream

# The client does not limit the size of responses.
_MAX_BYTES = 1 << 32
_TRAVERSAL_WORDS = 1 << 30
_CONNECT_S = 10.0


class CapnpClientConnection:
    """A connection that carries many calls, whose responses arrive in any order."""

    def __init__(self, url: str, settings: RemoteSettings) -> None:
        self._url = url
        self._settings = settings
        # The number of open calls and uploads; `CapnpClientConnections` counts them.
        self.open_calls = 0
        self._stack = AsyncExitStack()
        self._making = asyncio.Lock()
        self._stream: Stream | None = None
        self._rpc: Any = None
        self._queues: Any = None
        self._token: str | None = None
        self._has_loop = False
        self._is_closed = False

    async def queues(self) -> Any:
        """Return the server's capability, after sending the current token. Raise `Lost` before a call is sent."""
        if self._queues is None or self._stream is None or self._stream.is_over or self._is_token_stale():
            async with self._making:
                if self._queues is None or self._stream is None or self._stream.is_over:
                    await self._connect()
                if self._is_token_stale():
                    await self._authenticate()
        return self._queues

    async def await_response(self, promise: Any, limit_s: float | None) -> Any:
        """Return the response to a call. Raise `Lost`, or `Internal` if the server failed or does not know the call."""
        try:
            async with asyncio.timeout(limit_s):
                return await promise
        except TimeoutError:
            self._drop()
            raise Lost("no response in time", was_sent=True, is_timeout=True) from None
        except capnp.KjException as error:
            reason = str(error).partition("\n")[0]
            if error.type == "DISCONNECTED":
                raise Lost("the connection was lost", was_sent=True) from None
            if error.type == "UNIMPLEMENTED":
                raise Internal(f"{self._url} does not know this call: the server is older than this client") from None
            raise Internal(f"{self._url} failed: {reason}") from None

    def _drop(self) -> None:
        """Drop the connection, because a fresh one may reach another server."""
        if self._stream is not None:
            self._stream.cut_off(None)

    async def close(self) -> None:
        self._is_closed = True
        self._queues = self._rpc = None
        if self._stream is not None:
            self._stream.close()
            await asyncio.sleep(0)
            self._stream.cut_off(None)
        await self._stack.aclose()

    async def _connect(self) -> None:
        if self._is_closed:
            raise Lost("this client is closed", was_sent=False)
        if not self._has_loop:
            self._has_loop = True
            await self._stack.enter_async_context(kj_loop())
        address = self._settings.address
        self._queues = self._rpc = self._token = None
        try:
            async with asyncio.timeout(min(_CONNECT_S, self._settings.timeout_ms / 1_000)):
                _, self._stream = await asyncio.get_running_loop().create_connection(
                    self._make, address.host, address.port, ssl=self._settings.tls
                )
        except TimeoutError:
            raise Lost("no connection in time", was_sent=False) from None
        except ssl.SSLCertVerificationError as error:
            raise Lost(f"its certificate is not trusted: {error.verify_message}", was_sent=False) from None
        except OSError as error:
            raise Lost(error.strerror or str(error), was_sent=False) from None

    def _make(self) -> Stream:
        return Stream(Frames(_MAX_BYTES), self._begin, self._end)

    def _begin(self, stream: Stream) -> None:
        self._rpc = capnp.TwoPartyClient(stream.io, traversal_limit_in_words=_TRAVERSAL_WORDS)
        self._queues = self._rpc.bootstrap().cast_as(SCHEMA.Queues)

    def _end(self, why: Exception | None) -> None:
        """Do nothing, because the library ends the open calls."""

    def _is_token_stale(self) -> bool:
        return self._wanted_token() != self._token

    def _wanted_token(self) -> str | None:
        token = self._settings.token
        return check_token(token()) if callable(token) else token

    async def _authenticate(self) -> None:
        token = self._wanted_token()
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1_000):
                response = await self._queues.authenticate(token=token or "")
        except TimeoutError:
            self._drop()
            raise Lost("no response to the token in time", was_sent=False) from None
        except capnp.KjException as error:
            raise Lost(str(error).partition("\n")[0], was_sent=False) from None
        if response._has("error"):
            raise read_error(response.error)
        self._token = token
