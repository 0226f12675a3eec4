"""Calls to a server over the framed protocol: one try each."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from holdfast.client.framed.answer import ERROR, ITEM, Answer, Calling, OpenCall
from holdfast.client.framed.greeting import Greeting
from holdfast.client.framed.links import FramedClientConnections
from holdfast.client.framed.sockets import make_socket_pool
from holdfast.client.remote.calls import GONE_S, LEAVE_S, Calls
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import RemoteSettings
from holdfast.client.remote.tasks import LoopTasks, ThreadTasks
from holdfast.client.remote.tries import Failure, Tries
from holdfast.model.errors import HoldfastError, PayloadTooLarge, RateLimited, StoreUnavailable
from holdfast.wire.framed.greetings import read_error

# Calls up to this size are taken by every server. Before a larger one is sent, its server has to say what it takes.
_TAKEN_BYTES = 64 << 10
# Kind and call, which the length of a frame counts.
_HEAD_BYTES = 5

Heard = Callable[[Answer], Awaitable[None]]


class FramedRequest(msgspec.Struct):
    # The body of a CALL frame.
    body: bytes
    is_repeatable: bool = True
    # Answered when it is done, however long that takes.
    is_long: bool = False
    # On top of the timeout.
    wait_ms: int | None = 0
    is_stream: bool = False
    # Several callers' messages in one: told to slow down, each asks for itself.
    is_shared: bool = False
    is_last: bool = False
    # Given the answers that came after the caller had left.
    heard_late: Heard | None = None
    # The call of a stream that has begun.
    call: OpenCall | None = None


class FramedCalls(Calls[FramedRequest, Answer]):
    def __init__(self, url: str, settings: RemoteSettings, *, in_threads: bool, is_upgrade: bool) -> None:
        """`in_threads`: calls are made by the calling threads, and never suspend. Else they are the running loop's.

        `is_upgrade`: the address in the settings is that of the HTTP port.
        """
        self._in_threads = in_threads
        self._greeting = Greeting(settings, is_upgrade=is_upgrade)
        super().__init__(url, settings, ThreadTasks if in_threads else LoopTasks)

    def begin(self) -> None:
        super().begin()
        settings = self.settings
        self.connections: Calling
        if self._in_threads:
            self.connections = make_socket_pool(settings.address, settings.tls, settings.pool, self._greeting)
        else:
            self.connections = FramedClientConnections(settings.address, settings.tls, self._greeting)

    def forked(self) -> None:
        self._inherited.append(self.connections)
        super().forked()

    # --- A call ----------------------------------------------------------------------------------------------------

    def error_in(self, answer: Answer) -> HoldfastError | None:
        return read_error(answer[1]) if answer[0] == ERROR else None

    def failure_in(self, request: FramedRequest, answer: Answer, tries: Callable[[], Tries]) -> Failure | None:
        if answer[0] != ERROR:
            return None
        return self.refusal(read_error(answer[1]), tries, is_shared=request.is_shared)

    def refusal(
        self,
        error: HoldfastError,
        tries: Callable[[], Tries],
        *,
        is_shared: bool = False,
        repeats_undone: bool = True,
    ) -> Failure | None:
        """Return None for a refusal that another try would not change."""
        if not isinstance(error, RateLimited | StoreUnavailable):
            return None
        if is_shared and isinstance(error, RateLimited):
            return None  # waiting is each caller's own
        self._standing.was_answered = True
        wait_ms = error.facts.get("retry_after_ms")
        return tries().refused(
            error,
            at_least_ms=wait_ms if isinstance(wait_ms, int) else None,
            is_undone=isinstance(error, RateLimited) or error.facts.get("closing") is True,
            repeats_undone=repeats_undone,
        )

    async def attempt(self, request: FramedRequest) -> Answer:
        wait_ms = request.wait_ms
        is_long = wait_ms != 0 or request.is_long or request.is_stream
        limit_s = None if request.is_long or wait_ms is None else self.timeout_s + wait_ms / 1_000
        call: OpenCall = await self.connections.take(is_long=is_long, timeout_s=self.timeout_s)
        if request.heard_late is not None:
            return await self._attempt_leaving(request, call, limit_s, request.heard_late, is_long=is_long)
        try:
            if len(request.body) > _TAKEN_BYTES:
                await self._check_size(call, len(request.body))
            return await call.ask(request.body, limit_s)
        finally:
            self.connections.put_back(call, is_long=is_long)

    async def _attempt_leaving(
        self, request: FramedRequest, call: OpenCall, limit_s: float | None, heard: Heard, *, is_long: bool
    ) -> Answer:
        """Make a try of a call that may be left: what is in its answer then is given back."""
        is_kept = False
        self.hold(call, partial(self._hear_out, call, heard))
        try:
            answer = await call.ask(request.body, limit_s)
            if request.is_stream and answer[0] == ITEM:
                is_kept = True
                request.call = call
            return answer
        except Lost as lost:
            if lost.is_timeout:
                call.give_up(lambda answer: self.spawn(_hear(heard, answer)))
            raise
        except BaseException:  # cancelled, or interrupted
            is_kept = True
            self.connections.let_go(call, is_long=is_long)
            if self.release(call) is not None:
                # A claim that is left ends when the server has let go of it, as it would embedded; without an answer,
                # soon.
                await self.tasks.see_off(self._hear_out(call, heard), GONE_S)
            raise
        finally:
            self.release(call)
            if not is_kept:
                self.connections.put_back(call, is_long=is_long)

    async def _hear_out(self, call: OpenCall, heard: Heard) -> None:
        for answer in await call.leave(LEAVE_S):
            if answer[0] != ERROR:
                await heard(answer)
        call.give_up(lambda answer: self.spawn(_hear(heard, answer)))

    async def _check_size(self, call: OpenCall, size: int) -> None:
        server = await call.server(self.timeout_s)
        if size + _HEAD_BYTES > server.max_frame_bytes:
            raise PayloadTooLarge(
                f"the call is {size} bytes, and {self.url} takes at most {server.max_frame_bytes} in one: send fewer "
                "messages at a time, or read a large payload from a file by `queue.upload`",
                bytes=size,
                max_bytes=server.max_frame_bytes,
            )

    # --- Streams ---------------------------------------------------------------------------------------------------

    def end_stream(self, call: OpenCall) -> None:
        """Leave it now, unless closing has seen to that."""
        self.connections.let_go(call, is_long=True)
        leave = self.release(call)
        if leave is not None and not self.is_closed:
            self.spawn(leave())

    async def reach(self, limit_s: float) -> None:
        """Connect, and wait for the server's hello. Raise `Lost`."""
        call: OpenCall = await self.connections.take(is_long=True, timeout_s=limit_s)
        try:
            await call.server(limit_s)
        finally:
            self.connections.put_back(call, is_long=True)

    async def disconnect(self) -> None:
        self.connections.close()


async def _hear(heard: Heard, answer: Answer) -> None:
    await heard(answer)
