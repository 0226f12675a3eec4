"""A transport to a server whose protocol is chosen when it connects, and again whenever the server was unreachable."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast.client.choosing.endpoints import Protocol, find_endpoints, is_unreached
from holdfast.client.choosing.messages import ChosenMessages
from holdfast.client.client import AsyncHoldfast
from holdfast.client.framed.transport import FramedTransport
from holdfast.client.http.transport import HttpTransport
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import RemoteSettings, parse_settings
from holdfast.client.transport import Transport
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.wire.operation import Operation

_log = logging.getLogger("holdfast")

R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")

# How long each endpoint may take to accept a connection.
_REACH_S = 2.0
# How often one call is moved to another transport. A server that changes more often is treated as unreachable.
_MAX_MOVES = 3

RemoteTransport = HttpTransport | FramedTransport


class _Choice(NamedTuple):
    """A transport, and the URL of its framed endpoint; None over HTTP."""

    transport: RemoteTransport
    framed_url: str | None


class ChosenTransport:
    """A transport to a server over the framed protocol where it gets through, else over HTTP.

    After a call had no response, the protocol is chosen again: the server may have returned without its framed port, or
    a proxy may stand before it now. If the choice differs, new calls use the new transport, calls that may be sent
    again are moved to it, and the previous transport is closed once its other calls have ended.
    """

    def __init__(self, settings: RemoteSettings, protocol: Protocol) -> None:
        self._settings = settings
        self._protocol = protocol
        self._choice: _Choice | None = None
        # Set while the server was unreachable and nothing could be chosen, so that the next call chooses first.
        self._is_choice_due = False
        self._is_closed = False
        self._choosing: asyncio.Task[None] | None = None
        self._open_calls: Counter[RemoteTransport] = Counter()
        self._closing: set[asyncio.Task[None]] = set()
        self.messages = ChosenMessages(self)

    @property
    def current(self) -> RemoteTransport:
        """The transport of new calls."""
        assert self._choice is not None, "connect() has not returned"
        return self._choice.transport

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def connect(self) -> None:
        """Choose the protocol for the first time.

        Raise `StoreUnavailable` if the server cannot be reached, or if frames do not get through although the protocol
        is `FRAMED`.
        """
        self._choice = await self._choose(is_first=True)

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        is_repeatable = operation.may_repeat(request) or bool(operation.done_if)
        is_unsure = False

        async def call_once(transport: Transport, is_moved_unsure: bool) -> A:
            nonlocal is_unsure
            is_unsure = is_moved_unsure
            return await transport.call(operation, ref, request)

        try:
            return await self.run(call_once, is_repeatable=is_repeatable)
        except HoldfastError as error:
            if is_unsure and error.code in operation.done_if:
                return None  # type: ignore[return-value]  # the earlier try did it; such operations return nothing
            raise

    async def run(self, call: Callable[[Transport, bool], Awaitable[T]], *, is_repeatable: bool) -> T:
        """Make a call on the current transport, and again on another one that replaces it meanwhile.

        `call` gets the transport, and whether an earlier try may have been carried out.
        """
        if self._is_choice_due:
            await self._choose_again()
        is_unsure = False
        for moves in range(_MAX_MOVES + 1):
            with self.using() as transport:
                try:
                    return await call(transport, is_unsure)
                except StoreUnavailable as error:
                    if moves == _MAX_MOVES or not (is_repeatable or is_unreached(error)):
                        raise
                    if "outcome" not in error.facts or not await self.is_replaced(transport):
                        raise
                    is_unsure = is_unsure or not is_unreached(error)
        raise AssertionError("the last round returns or raises")

    @contextmanager
    def using(self) -> Iterator[RemoteTransport]:
        """Return the current transport, and keep it open during the block."""
        transport = self.current
        self._open_calls[transport] += 1
        try:
            yield transport
        finally:
            self._open_calls[transport] -= 1
            self._close_if_unused(transport)

    async def is_replaced(self, transport: RemoteTransport) -> bool:
        """Choose again after a call without a response. Return whether another transport is current now."""
        if transport is self.current and not self._is_closed:
            await self._choose_again()
        return transport is not self.current

    async def close(self) -> None:
        self._is_closed = True
        if self._choosing is not None:
            self._choosing.cancel()
            await asyncio.wait({self._choosing})
        if self._choice is not None:
            for transport in {self.current, *self._open_calls}:
                await transport.close()
        if self._closing:
            await asyncio.wait(self._closing)

    # --- Choosing --------------------------------------------------------------------------------------------------

    async def _choose_again(self) -> None:
        """Choose once for all callers that ask at the same time."""
        if self._choosing is None:
            self._choosing = asyncio.create_task(self._choose_once())
            self._choosing.add_done_callback(self._chosen)
        # A caller that is cancelled does not end the choice of the others; `close` ends it for all of them.
        await asyncio.wait({self._choosing})

    def _chosen(self, choosing: "asyncio.Task[None]") -> None:
        self._choosing = None
        if not choosing.cancelled() and (error := choosing.exception()) is not None:
            _log.error("protocol_choice_failed", exc_info=error)

    async def _choose_once(self) -> None:
        """Replace the current transport if another protocol or endpoint is better now."""
        previous = self._choice
        assert previous is not None
        try:
            choice = await self._choose(is_first=False)
        except HoldfastError:
            self._is_choice_due = True
            return
        self._is_choice_due = False
        if choice.framed_url == previous.framed_url:
            await choice.transport.close()
            return
        self._choice = choice
        # Count it once, so that it is closed even if it has no open call.
        self._open_calls[previous.transport] += 0
        self._close_if_unused(previous.transport)

    async def _choose(self, *, is_first: bool) -> _Choice:
        settings, reasons = self._settings, list[str]()
        try:
            endpoints = await find_endpoints(settings)
            if not endpoints:
                reasons.append("the server does not offer the framed protocol")
        except HoldfastError as error:
            # Later, a server without a response or behind a failing proxy is about to return, perhaps with frames.
            if isinstance(error, StoreUnavailable) and (is_unreached(error) or not is_first):
                raise
            reasons.append(error.message)
            endpoints = []
        for endpoint in endpoints:
            try:
                framed = await FramedTransport.reach(
                    endpoint.url, endpoint.settings, _REACH_S, is_upgrade=endpoint.is_upgrade
                )
            except Lost as lost:
                reasons.append(f"{endpoint.url} does not accept the framed protocol: {lost.reason}")
            else:
                return self._chose(framed, endpoint.url, "")
        reason = "; ".join(reasons)
        if self._protocol is Protocol.FRAMED:
            url = settings.address.url
            raise StoreUnavailable(f"{url} cannot be used over the framed protocol: {reason}", url=url)
        return self._chose(HttpTransport(settings), None, reason)

    def _chose(self, transport: RemoteTransport, framed_url: str | None, reason: str) -> _Choice:
        if self._choice is None or self._choice.framed_url != framed_url:
            if framed_url is None:
                url = self._settings.address.url
                _log.info("protocol_chosen protocol=http url=%s reason=%s", url, reason)
            else:
                _log.info("protocol_chosen protocol=framed url=%s", framed_url)
        transport.watch(partial(self.is_replaced, transport))
        return _Choice(transport, framed_url)

    def _close_if_unused(self, transport: RemoteTransport) -> None:
        if transport is not self.current and not self._open_calls[transport] and not self._is_closed:
            del self._open_calls[transport]
            closing = asyncio.get_running_loop().create_task(transport.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closed)

    def _closed(self, closing: "asyncio.Task[None]") -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            _log.error("replaced_connection_not_closed", exc_info=error)


def open_chosen_on_loop(url: str, settings: Mapping[str, Any], protocol: Protocol) -> AsyncHoldfast:
    """Return a client for the running loop; entering it chooses the protocol and connects.

    Entering raises `StoreUnavailable` if the server cannot be reached, or if `FRAMED` was given and frames do not get
    through. With `AUTO`, HTTP is used in that case.
    """
    parsed = parse_settings(url, settings)

    async def connect() -> Transport:
        if protocol is Protocol.HTTP:
            return HttpTransport(parsed)
        transport = ChosenTransport(parsed, protocol)
        await transport.connect()
        return transport

    return AsyncHoldfast(connect, parsed.address.url)
