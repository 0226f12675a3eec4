"""Calls to a server over any protocol: retried where that is safe, and cancelled without leaving messages leased."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.client.remote.lost import Lost
from holdfast.client.remote.settings import RemoteSettings
from holdfast.client.remote.tasks import Tasks
from holdfast.client.remote.tries import Failure, RetryState, Tries
from holdfast.dice import SystemDice
from holdfast.forking import listen_for_forks
from holdfast.model.errors import HoldfastError, StoreUnavailable

_log = logging.getLogger("holdfast")

# The shortest pause between two rounds of a call that is repeated for ever.
_ROUND_MS = 5_000
# How long a cancelled call waits for the server's last response, and how long its caller waits for that to end.
CANCEL_S = 5.0
CANCEL_WAIT_S = 1.0

Cancel = Callable[[], Coroutine[Any, Any, None]]
IsReplaced = Callable[[], Awaitable[bool]]


class AnyRequest(Protocol):
    """The fields that every protocol's request has."""

    # Idempotent: safe to send again.
    is_repeatable: bool
    # Also sent while the client is closing.
    is_last: bool


Req = TypeVar("Req", bound=AnyRequest)
Res = TypeVar("Res")


class Reply(msgspec.Struct, Generic[Res]):
    """A response. `is_unsure`: an earlier try of the call had no response and may have been carried out."""

    response: Res
    is_unsure: bool = False


class Calls(ABC, Generic[Req, Res]):
    """The calls of one client. A protocol implements one try, the reading of its errors, and disconnecting."""

    def __init__(self, url: str, settings: RemoteSettings, make_tasks: Callable[[], Tasks]) -> None:
        self.url = url
        self.settings = settings
        self.timeout_s = settings.timeout_ms / 1_000
        self._retry_state = RetryState(url, settings.timeout_ms, settings.retries, SystemDice().roll)
        self._make_tasks = make_tasks
        self._inherited: list[object] = []
        # Asked after each try without a response. True ends the call, because another transport replaces this one.
        self.is_replaced: IsReplaced = _is_never_replaced
        self.begin()
        listen_for_forks(self)

    def begin(self) -> None:
        """Start on the running loop or in the calling threads. Connections are made later, when they are needed."""
        self.tasks = self._make_tasks()
        # By connection or number: a function that cancels the waiting call or the stream.
        self._cancels: dict[object, Cancel] = {}
        self._retry_state.is_inherited = False

    def forked(self) -> None:
        """Stop using the parent's connections. Keep references to them, because freeing an open one logs a warning."""
        self._inherited += [self.tasks, self._cancels]
        if self.tasks.survives_fork:
            self.begin()
        else:
            self._retry_state.is_inherited = True

    # --- The methods of a protocol -------------------------------------------------------------------------------

    @abstractmethod
    async def try_once(self, request: Req) -> Res:
        """Send a request once, and return its response, which may be an error. Raise `Lost` without a response."""

    @abstractmethod
    def failure_in(self, request: Req, response: Res, tries: Callable[[], Tries]) -> Failure | None:
        """Return None for a final response; otherwise return whether and when to repeat the call."""

    @abstractmethod
    def error_in(self, response: Res) -> HoldfastError | None:
        """Return the error in a final response; None for a success."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close every connection. Open calls end without a response."""

    # --- A call ----------------------------------------------------------------------------------------------------

    async def send(self, request: Req) -> Res:
        """Send a request, with retries where they are safe. Return the response, or raise its error."""
        if not request.is_last:
            self._retry_state.check_open()
        outcome: Res | Lost
        try:
            outcome = await self.try_once(request)
            if self.error_in(outcome) is None:
                # Nearly every call succeeds at its first try, and needs no record of its tries.
                self._retry_state.has_responded = True
                return outcome
        except Lost as lost:
            outcome = lost
        return self.check(await self._retry(request, outcome))

    async def send_unchecked(self, request: Req) -> Reply[Res]:
        """Send a request, with retries where they are safe. Return the final response, which may be an error."""
        return await self._retry(request, await self._try(request))

    async def _try(self, request: Req) -> Res | Lost:
        if not request.is_last:
            self._retry_state.check_open()
        try:
            return await self.try_once(request)
        except Lost as lost:
            return lost

    async def _retry(self, request: Req, outcome: Res | Lost) -> Reply[Res]:
        """Return the final response, given the outcome of the first try."""
        retry_state = self._retry_state
        tries: Tries | None = None

        def tries_of_call() -> Tries:
            nonlocal tries
            tries = tries or Tries(retry_state, is_repeatable=request.is_repeatable)
            return tries

        while True:
            failure: Failure | None
            if isinstance(outcome, Lost):
                failure = tries_of_call().record_loss(outcome)
                if failure.pause_ms is not None and not request.is_last and await self.is_replaced():
                    raise failure.error
            else:
                failure = self.failure_in(request, outcome, tries_of_call)
                retry_state.has_responded = True
                if failure is None:
                    return Reply(outcome, tries is not None and tries.is_unsure)
            if not request.is_last:
                retry_state.check_open()
            if failure.pause_ms is None:
                raise failure.error
            if failure.pause_ms:
                await self.tasks.sleep(failure.pause_ms / 1_000)
            outcome = await self._try(request)

    def check(self, reply: Reply[Res]) -> Res:
        """Return the response if it is a success, or raise its error."""
        error = self.error_in(reply.response)
        if error is None:
            return reply.response
        if reply.is_unsure:
            error.add_note("an earlier try of this call had no response and may have been carried out")
        raise error

    async def send_forever(self, request: Req) -> Res:
        """Send a request as `send` does, and repeat it while a server that has responded before is unreachable.

        Use it for claims that wait for ever.
        """
        retry_state, rounds = self._retry_state, 0
        while True:
            try:
                return await self.send(request)
            except StoreUnavailable as error:
                if not retry_state.has_responded or not retry_state.retries or retry_state.is_closed:
                    raise
                if await self.is_replaced():
                    raise
                _log.warning("server_unreachable error=%s: trying again", error.message)
            await self.pause(rounds, _ROUND_MS)
            rounds += 1

    async def pause(self, retries: int, at_least_ms: int | None) -> None:
        """Sleep for the backoff of this number of retries."""
        await self.tasks.sleep(self._retry_state.pause_ms(retries, at_least_ms) / 1_000)

    def tries(self, *, is_repeatable: bool) -> Tries:
        """Return the record of the tries of a new call."""
        return Tries(self._retry_state, is_repeatable=is_repeatable)

    # --- The end ---------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Return whether the client is closed."""
        return self._retry_state.is_closed

    def check_open(self) -> None:
        self._retry_state.check_open()

    def track(self, call: object, cancel: Cancel) -> None:
        """Let `close` cancel this call or stream. `call` is its connection or its number."""
        self._cancels[call] = cancel

    def untrack(self, call: object) -> Cancel | None:
        """Return the function that cancels the call; None if `close` cancels it, or it was untracked before."""
        return self._cancels.pop(call, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background. The cancellation of a caller does not reach it, and `close` waits for it."""
        self.tasks.spawn(work)

    def stop(self) -> None:
        """Make no more calls, except those that give messages back."""
        self._retry_state.is_closed = True
        self.tasks.wake_sleepers()

    async def close(self) -> None:
        """Cancel open calls, give back their messages, and disconnect."""
        self.stop()
        if self._retry_state.is_inherited:
            return  # the connections belong to the parent process, which closes them
        for cancel in list(self._cancels.values()):
            self.spawn(cancel())
        await self.tasks.join()
        await self.disconnect()


async def _is_never_replaced() -> bool:
    return False
