"""The connection to a server: made when it is first needed, and again after it was lost."""

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

# A server is trusted with the size of its answers.
_MAX_BYTES = 1 << 32
_TRAVERSAL_WORDS = 1 << 30
_CONNECT_S = 10.0


class CapnpClientConnection:
    """One connection at a time carries its calls: each is answered as soon as it is done, in no order."""

    def __init__(self, url: str, settings: RemoteSettings) -> None:
        self._url = url
        self._settings = settings
        # Calls that are carried now, as whoever makes them counts.
        self.under_way = 0
        self._stack = AsyncExitStack()
        self._making = asyncio.Lock()
        self._stream: Stream | None = None
        self._rpc: Any = None
        self._queues: Any = None
        self._token: str | None = None
        self._has_loop = False
        self._is_closed = False

    async def queues(self) -> Any:
        """The server's capability, with the caller known to it. `Lost` before anything was sent."""
        if self._queues is None or self._stream is None or self._stream.is_over or self._is_token_stale():
            async with self._making:
                if self._queues is None or self._stream is None or self._stream.is_over:
                    await self._connect()
                if self._is_token_stale():
                    await self._authenticate()
        return self._queues

    async def answer(self, promise: Any, limit_s: float | None) -> Any:
        """What a call over this connection came to. `Lost`; `Internal` if the server failed, or knows no such call."""
        try:
            async with asyncio.timeout(limit_s):
                return await promise
        except TimeoutError:
            self._drop()
            raise Lost("no answer in time", was_sent=True, is_timeout=True) from None
        except capnp.KjException as error:
            reason = str(error).partition("\n")[0]
            if error.type == "DISCONNECTED":
                raise Lost("the connection was lost", was_sent=True) from None
            if error.type == "UNIMPLEMENTED":
                raise Internal(
                    f"{self._url} does not know this call: its version is older than this client's"
                ) from None
            raise Internal(f"{self._url} failed: {reason}") from None

    def _drop(self) -> None:
        """The other side does not answer: a fresh connection may find another."""
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
        """Calls under way hear of it from the library."""

    def _is_token_stale(self) -> bool:
        return self._wanted_token() != self._token

    def _wanted_token(self) -> str | None:
        token = self._settings.token
        return check_token(token()) if callable(token) else token

    async def _authenticate(self) -> None:
        token = self._wanted_token()
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1_000):
                answer = await self._queues.authenticate(token=token or "")
        except TimeoutError:
            self._drop()
            raise Lost("no answer to the token in time", was_sent=False) from None
        except capnp.KjException as error:
            raise Lost(str(error).partition("\n")[0], was_sent=False) from None
        if answer._has("error"):
            raise read_error(answer.error)
        self._token = token
