"""The connection of a door process to the store process: calls over the framed protocol, on a Unix socket."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from holdfast.client.framed.connection import FramedClientConnection
from holdfast.client.framed.connections import FramedClientConnections
from holdfast.client.framed.handshake import Handshake
from holdfast.client.framed.loop_call import LoopOpenCall
from holdfast.client.framed.open_call import ERROR, RESULT, ResponseFrame
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import Address, RemoteSettings
from holdfast.client.remote.tasks import LoopTasks
from holdfast.dispatch.fairness import FairTurns, cost_of
from holdfast.model.errors import StoreUnavailable
from holdfast.wire.framed.greetings import read_error

# The store process listens before the first door process starts.
_CONNECT_S = 10.0

GiveBack = Callable[[bytes], None]


class LinkAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the store process, and the secret that authenticates the door process to it."""

    path: str
    secret: str


class StoreLink:
    """The calls of all callers of one door process.

    At most `most_at_once` calls that do not wait for messages are under way. Further calls take turns by the weights of
    their tenants. The turns are taken here, because the store process serves its links in the order of arrival.
    """

    def __init__(self, address: LinkAddress, weight_of: Callable[[str], int], most_at_once: int) -> None:
        self._connections = _UnixConnections(address)
        self._window = _Window(weight_of, most_at_once)
        self._tasks = LoopTasks()
        self._waiting: set[LoopOpenCall] = set()
        self.is_draining = False

    async def ask(self, body: bytes, tenant: str, size: int = 0) -> bytes:
        """Return the result of a call that does not wait. `size` is the size of its payloads, for the cost of its turn.

        Raise the store's error, or `StoreUnavailable` if the store process has ended.
        """
        window = self._window
        await window.enter(tenant, cost_of(1, size))
        try:
            call = await self._open()
            try:
                return _result(await call.request(body, None))
            except Lost as lost:
                raise _gone(lost) from None
            finally:
                self._connections.put_back(call, is_long=False)
        finally:
            window.leave()

    async def claim(self, body: bytes, tenant: str, give_back: GiveBack | None, *, waits: bool) -> bytes:
        """Return the result of a call that may claim messages.

        If the caller is cancelled, the result goes to `give_back`, so that no lease is left behind. With `waits` the
        call may stay open long; it then ends with an empty result when this process drains.
        """
        await self._window.enter(tenant, cost_of(1, 0))
        is_inside = True
        try:
            call = await self._open()
            try:
                await call.open(body)
                if waits:
                    is_inside = False
                    self._window.leave()
                    self._waiting.add(call)
                    if self.is_draining:
                        call.cancel()
                return _result(await call.receive(None))
            except Lost as lost:
                raise _gone(lost) from None
            except asyncio.CancelledError:
                _leave(call, give_back)
                raise
            finally:
                self._waiting.discard(call)
        finally:
            if is_inside:
                self._window.leave()

    async def _open(self) -> LoopOpenCall:
        try:
            return await self._connections.take(is_long=False, timeout_s=_CONNECT_S)
        except Lost as lost:
            raise _gone(lost) from None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background."""
        self._tasks.spawn(work)

    def begin_drain(self) -> None:
        """End every waiting call with an empty result."""
        self.is_draining = True
        for call in self._waiting:
            call.cancel()

    async def idle(self) -> None:
        """Wait until all spawned work has ended."""
        await self._tasks.join()

    def close(self) -> None:
        """Close the connection. Calls under way end without a response."""
        self._connections.close()


class _Window:
    """The limit on the calls under way, and the turns of further calls."""

    def __init__(self, weight_of: Callable[[str], int], most_at_once: int) -> None:
        self._turns: FairTurns[asyncio.Future[None]] = FairTurns(weight_of)
        self._costs: dict[asyncio.Future[None], int] = {}
        self._room = most_at_once

    async def enter(self, tenant: str, cost: int) -> None:
        """Wait until the call may begin. Call `leave` when it has ended."""
        if self._room > 0 and not self._turns.size:
            self._room -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._costs[turn] = cost
        self._turns.push(tenant, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not self._turns.remove(tenant, turn) and not turn.cancelled():
                self.leave()  # the call got its turn, but does not use it
            raise
        finally:
            del self._costs[turn]

    def leave(self) -> None:
        """End a call, and let the next one begin."""
        self._room += 1
        while self._room > 0 and (next_turn := self._turns.pop()) is not None:
            tenant, turn = next_turn
            self._turns.charge(tenant, self._costs[turn])
            if not turn.done():
                turn.set_result(None)
                self._room -= 1


class _UnixConnections(FramedClientConnections):
    # A single connection, so that the calls of a caller reach the store in the order in which they were made.
    max_connections = 1

    def __init__(self, address: LinkAddress) -> None:
        nowhere = Address(url=f"unix:{address.path}", host="", port=0, is_tls=False, prefix="")
        settings = RemoteSettings(address=nowhere, token=address.secret)
        super().__init__(nowhere, None, Handshake(settings, is_upgrade=False))
        self._path = address.path

    async def dial(self, make: Callable[[], FramedClientConnection]) -> FramedClientConnection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(make, self._path)
        return connection


def _result(answer: ResponseFrame) -> bytes:
    kind, body = answer
    if kind == ERROR:
        raise read_error(body)
    return body


def _leave(call: LoopOpenCall, give_back: GiveBack | None) -> None:
    """Abandon a call, and give back its result, whether it has arrived or arrives later."""

    def take(answer: ResponseFrame) -> None:
        if answer[0] == RESULT and give_back is not None:
            give_back(answer[1])

    for answer in call.frames:
        take(answer)
    call.abandon(take)


def _gone(lost: Lost) -> StoreUnavailable:
    if not lost.was_sent:
        return StoreUnavailable("the store process of this server has ended: try again", closing=True)
    return StoreUnavailable(
        "the store process of this server has ended; the call may have been carried out", outcome="unknown"
    )
