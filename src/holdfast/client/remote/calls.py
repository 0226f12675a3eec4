"""Calls to a server over whichever wire: tried again where that is safe, and left without stranding anything."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
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

# Between two rounds of a call that goes on for ever.
_ROUND_MS = 5_000
# For the server to see that a caller left, and how long that caller waits for it.
LEAVE_S = 5.0
GONE_S = 1.0

Leave = Callable[[], Coroutine[Any, Any, None]]


class AnyRequest(Protocol):
    """The fields that every protocol's request has."""

    # Idempotent: safe to send again.
    is_repeatable: bool
    # Sent by a client that is closing, too.
    is_last: bool


Req = TypeVar("Req", bound=AnyRequest)
Ans = TypeVar("Ans")


class Reply(msgspec.Struct, Generic[Ans]):
    """An answer. `is_unsure`: an earlier try of the same call went unanswered, and may have been carried out."""

    answer: Ans
    is_unsure: bool = False


class Calls(ABC, Generic[Req, Ans]):
    """A protocol fills in how one try is made, how its failure is told, and how it disconnects."""

    def __init__(self, url: str, settings: RemoteSettings, make_tasks: Callable[[], Tasks]) -> None:
        self.url = url
        self.settings = settings
        self.timeout_s = settings.timeout_ms / 1_000
        self._standing = RetryState(url, settings.timeout_ms, settings.retries, SystemDice().roll)
        self._make_tasks = make_tasks
        self._inherited: list[object] = []
        self.begin()
        listen_for_forks(self)

    def begin(self) -> None:
        """Use the running loop from now on, or the calling threads, over connections that are still to be made."""
        self.tasks = self._make_tasks()
        # How each call that waits, and each stream, is left; by its connection or its number.
        self._leaving: dict[object, Leave] = {}
        self._standing.is_inherited = False

    def forked(self) -> None:
        """Keep off the parent's connections, and keep them: freed, each would warn that it is open."""
        self._inherited += [self.tasks, self._leaving]
        if self.tasks.survives_fork:
            self.begin()
        else:
            self._standing.is_inherited = True

    # --- What a protocol fills in ----------------------------------------------------------------------------------

    @abstractmethod
    async def attempt(self, request: Req) -> Ans:
        """Send a request and return its answer, be it a refusal. Raise `Lost`."""

    @abstractmethod
    def failure_in(self, request: Req, answer: Ans, tries: Callable[[], Tries]) -> Failure | None:
        """Return None for an answer that stands, else whether and when the call is made again."""

    @abstractmethod
    def error_in(self, answer: Ans) -> HoldfastError | None:
        """Return the error of an answer that stands; None for a success."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close every connection: calls under way end without an answer."""

    # --- A call ----------------------------------------------------------------------------------------------------

    async def ask(self, request: Req) -> Ans:
        """Return the answer to a call if it is a success, else raise its error."""
        outcome = await self._try(request)
        if not isinstance(outcome, Lost) and self.error_in(outcome) is None:
            # Nearly every call is done by its first try, and needs no record of its tries.
            self._standing.was_answered = True
            return outcome
        return self.checked(await self._try_on(request, outcome))

    async def tell(self, request: Req) -> Reply[Ans]:
        """Return the answer to a call, be it a refusal, tried again where that is safe."""
        return await self._try_on(request, await self._try(request))

    async def _try(self, request: Req) -> Ans | Lost:
        if not request.is_last:
            self._standing.check_open()
        try:
            return await self.attempt(request)
        except Lost as lost:
            return lost

    async def _try_on(self, request: Req, outcome: Ans | Lost) -> Reply[Ans]:
        """Return the answer that stands in the end, given the outcome of the first try."""
        standing = self._standing
        tries: Tries | None = None

        def tries_of_call() -> Tries:
            nonlocal tries
            tries = tries or Tries(standing, is_repeatable=request.is_repeatable)
            return tries

        while True:
            failure: Failure | None
            if isinstance(outcome, Lost):
                failure = tries_of_call().lost(outcome)
            else:
                failure = self.failure_in(request, outcome, tries_of_call)
                standing.was_answered = True
                if failure is None:
                    return Reply(outcome, tries is not None and tries.is_unsure)
            if not request.is_last:
                standing.check_open()
            if failure.pause_ms is None:
                raise failure.error
            if failure.pause_ms:
                await self.tasks.sleep(failure.pause_ms / 1_000)
            outcome = await self._try(request)

    def checked(self, told: Reply[Ans]) -> Ans:
        """Return an answer if it is a success, else raise its error."""
        error = self.error_in(told.answer)
        if error is None:
            return told.answer
        if told.is_unsure:
            error.add_note("an earlier try of this call went unanswered, and may have been carried out")
        raise error

    async def ask_for_ever(self, request: Req) -> Ans:
        """The same for those who wait for ever: a server that is gone may come back."""
        standing, rounds = self._standing, 0
        while True:
            try:
                return await self.ask(request)
            except StoreUnavailable as error:
                if not standing.was_answered or not standing.retries or standing.is_closed:
                    raise
                _log.warning("still trying: %s", error.message)
            await self.pause(rounds, _ROUND_MS)
            rounds += 1

    async def pause(self, retries: int, at_least_ms: int | None) -> None:
        await self.tasks.sleep(self._standing.pause_ms(retries, at_least_ms) / 1_000)

    def tries(self, *, is_repeatable: bool) -> Tries:
        return Tries(self._standing, is_repeatable=is_repeatable)

    # --- Its end ---------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._standing.is_closed

    def check_open(self) -> None:
        self._standing.check_open()

    def hold(self, call: object, leave: Leave) -> None:
        """Let closing leave this call, or stream; by its connection or its number."""
        self._leaving[call] = leave

    def release(self, call: object) -> Leave | None:
        """Return how it would be left, unless closing has seen to that or it was released before."""
        return self._leaving.pop(call, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that no caller's leaving ends; closing waits for it."""
        self.tasks.spawn(work)

    def stop(self) -> None:
        """Make no more calls, but for those that give back."""
        self._standing.is_closed = True
        self.tasks.end_sleeps()

    async def close(self) -> None:
        """Close; what callers left behind is given back first."""
        self.stop()
        if self._standing.is_inherited:
            return  # the parent closes its own
        for leave in list(self._leaving.values()):
            self.spawn(leave())
        await self.tasks.idle()
        await self.disconnect()
