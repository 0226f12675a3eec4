"""Calls to a server over the framed protocol. Each try opens one call on a connection."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from holdfast.client.framed.connections import FramedClientConnections
from holdfast.client.framed.handshake import Handshake
from holdfast.client.framed.open_call import ERROR, ITEM, CallPool, OpenCall, ResponseFrame
from holdfast.client.framed.sockets import make_socket_pool
from holdfast.client.remote.calls import CANCEL_S, CANCEL_WAIT_S, Calls
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import RemoteSettings
from holdfast.client.remote.tasks import LoopTasks, ThreadTasks
from holdfast.client.remote.tries import Failure, Tries
from holdfast.model.errors import HoldfastError, PayloadTooLarge, RateLimited, StoreUnavailable
from holdfast.wire.framed.greetings import read_error

# Every server accepts calls up to this size. For a larger call, the client first waits for the server's limit.
_TAKEN_BYTES = 64 << 10
# The kind and the call number, which the length of a frame includes.
_HEAD_BYTES = 5

OnLate = Callable[[ResponseFrame], Awaitable[None]]


class FramedRequest(msgspec.Struct):
    """A request, and how its call is made."""

    # The body of a CALL frame.
    body: bytes
    is_repeatable: bool = True
    # The server responds when the operation is done, however long that takes.
    is_long: bool = False
    # Added to the timeout; None waits for ever.
    wait_ms: int | None = 0
    is_stream: bool = False
    # The messages of several callers. If it is rate limited, each caller sends its own request.
    is_shared: bool = False
    is_last: bool = False
    # Called with each response frame that came after the caller was cancelled.
    on_late: OnLate | None = None
    # The call of an open stream.
    call: OpenCall | None = None


class FramedCalls(Calls[FramedRequest, ResponseFrame]):
    """The calls of one client over the framed protocol."""

    def __init__(self, url: str, settings: RemoteSettings, *, in_threads: bool, is_upgrade: bool) -> None:
        """`in_threads`: calls run in the calling threads and never suspend. Otherwise they run on the running loop.

        `is_upgrade`: the address in the settings is that of the HTTP port, which is upgraded to frames.
        """
        self._in_threads = in_threads
        self._handshake = Handshake(settings, is_upgrade=is_upgrade)
        super().__init__(url, settings, ThreadTasks if in_threads else LoopTasks)

    def begin(self) -> None:
        super().begin()
        settings = self.settings
        self.connections: CallPool
        if self._in_threads:
            self.connections = make_socket_pool(settings.address, settings.tls, settings.pool, self._handshake)
        else:
            self.connections = FramedClientConnections(settings.address, settings.tls, self._handshake)

    def forked(self) -> None:
        self._inherited.append(self.connections)
        super().forked()

    # --- A call ----------------------------------------------------------------------------------------------------

    def error_in(self, response: ResponseFrame) -> HoldfastError | None:
        return read_error(response[1]) if response[0] == ERROR else None

    def failure_in(self, request: FramedRequest, response: ResponseFrame, tries: Callable[[], Tries]) -> Failure | None:
        if response[0] != ERROR:
            return None
        return self.refusal(read_error(response[1]), tries, is_shared=request.is_shared)

    def refusal(
        self,
        error: HoldfastError,
        tries: Callable[[], Tries],
        *,
        is_shared: bool = False,
        repeats_undone: bool = True,
    ) -> Failure | None:
        """Return the failure of a refused try, or None if another try would have the same response."""
        if not isinstance(error, RateLimited | StoreUnavailable):
            return None
        if is_shared and isinstance(error, RateLimited):
            return None  # each caller of a shared request waits by itself
        self._retry_state.has_responded = True
        wait_ms = error.facts.get("retry_after_ms")
        return tries().record_refusal(
            error,
            at_least_ms=wait_ms if isinstance(wait_ms, int) else None,
            is_undone=isinstance(error, RateLimited) or error.facts.get("closing") is True,
            repeats_undone=repeats_undone,
        )

    async def try_once(self, request: FramedRequest) -> ResponseFrame:
        wait_ms = request.wait_ms
        is_long = wait_ms != 0 or request.is_long or request.is_stream
        limit_s = None if request.is_long or wait_ms is None else self.timeout_s + wait_ms / 1_000
        call: OpenCall = await self.connections.take(is_long=is_long, timeout_s=self.timeout_s)
        if request.on_late is not None:
            return await self._try_cancellable(request, call, limit_s, request.on_late, is_long=is_long)
        try:
            if len(request.body) > _TAKEN_BYTES:
                await self._check_size(call, len(request.body))
            return await call.request(request.body, limit_s)
        finally:
            self.connections.put_back(call, is_long=is_long)

    async def _try_cancellable(
        self, request: FramedRequest, call: OpenCall, limit_s: float | None, on_late: OnLate, *, is_long: bool
    ) -> ResponseFrame:
        """Make one try of a call whose late response is given back if the caller is cancelled."""
        is_kept = False
        self.track(call, partial(self._read_late, call, on_late))
        try:
            response = await call.request(request.body, limit_s)
            if request.is_stream and response[0] == ITEM:
                is_kept = True
                request.call = call
            return response
        except Lost as lost:
            if lost.is_timeout:
                call.abandon(lambda response: self.spawn(_receive_response(on_late, response)))
            raise
        except BaseException:  # cancelled, or interrupted
            is_kept = True
            self.connections.detach(call, is_long=is_long)
            if self.untrack(call) is not None:
                # A cancelled claim ends once the server has released it, as an embedded claim does. Without a response
                # it ends after CANCEL_WAIT_S.
                await self.tasks.spawn_and_wait(self._read_late(call, on_late), CANCEL_WAIT_S)
            raise
        finally:
            self.untrack(call)
            if not is_kept:
                self.connections.put_back(call, is_long=is_long)

    async def _read_late(self, call: OpenCall, on_late: OnLate) -> None:
        for response in await call.cancel_and_drain(CANCEL_S):
            if response[0] != ERROR:
                await on_late(response)
        call.abandon(lambda response: self.spawn(_receive_response(on_late, response)))

    async def _check_size(self, call: OpenCall, size: int) -> None:
        server = await call.server_hello(self.timeout_s)
        if size + _HEAD_BYTES > server.max_frame_bytes:
            raise PayloadTooLarge(
                f"the call has {size} bytes; {self.url} accepts at most {server.max_frame_bytes} in one: send fewer "
                "messages at a time, or send a large payload with `queue.upload`",
                bytes=size,
                max_bytes=server.max_frame_bytes,
            )

    # --- Streams ---------------------------------------------------------------------------------------------------

    def end_stream(self, call: OpenCall) -> None:
        """Cancel a stream now, unless `close` does."""
        self.connections.detach(call, is_long=True)
        cancel = self.untrack(call)
        if cancel is not None and not self.is_closed:
            self.spawn(cancel())

    async def reach(self, limit_s: float) -> None:
        """Connect, and wait for the hello of the server. Raise `Lost`."""
        call: OpenCall = await self.connections.take(is_long=True, timeout_s=limit_s)
        try:
            await call.server_hello(limit_s)
        finally:
            self.connections.put_back(call, is_long=True)

    async def disconnect(self) -> None:
        self.connections.close()


async def _receive_response(on_late: OnLate, response: ResponseFrame) -> None:
    await on_late(response)
