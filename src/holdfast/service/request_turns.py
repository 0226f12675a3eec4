"""Turns of requests: whose bytes a server reads next while several tenants call at once (SPEC 7.3).

Doors ask here before they parse a request. A tenant that sends more than its share waits at its sockets, and nothing of
what it sends is refused for that.

    alone       the requests that come are of one tenant: a door looks at one flag, and reads on
    contended   requests of another tenant came within the last second: a few requests that find nobody waiting are read
                at once; the others take turns by their tenants' weights, a few turns between two looks at the sockets,
                so that a request of a tenant that asks little is read soon after it arrives

A door tells whose request it is as soon as it knows (`note`). The request itself waited under the name that was known
before: the tenant that the same credential or the same connection had the last time, or the connection alone.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.clock import steady_s
from holdfast.dispatch.fairness import FairTurns, cost_of

# After the last request of another tenant than the one before it.
CONTENTION_S = 1.0
# Requests that are read at once in one round of the loop, by all doors: without load these are all there are.
MAX_AT_ONCE = 4
# Turns between two looks at the sockets: each look costs a system call, and a new tenant waits for these at most.
MAX_TURNS = 16
MAX_RUN_S = 0.001

# Callers that could not say who they are share one turn. No tenant's name has a space in it.
UNIDENTIFIED = "not identified"

_MAX_CREDENTIALS = 4_096


class TurnTaken(NamedTuple):
    """The requests that were begun in a turn, and the bytes that were parsed."""

    requests: int
    size: int


class Reader(Protocol):
    """A connection that has read more than it has parsed."""

    def take_turn(self) -> TurnTaken:
        """Parse and begin the next request, or a part of a large one."""


class RequestTurns:
    """Decides which connection of a process goes on. Shared by its doors; used from the event loop alone."""

    def __init__(
        self,
        weight_of: Callable[[str], int],
        loop: asyncio.AbstractEventLoop | None = None,
        now_s: Callable[[], float] = steady_s,
    ) -> None:
        self._turns: FairTurns[Reader] = FairTurns(weight_of)
        self._loop = loop or asyncio.get_running_loop()
        self._now_s = now_s
        self._numbers = itertools.count(1)
        # Tenants by the hashes of their credentials: there is no need to keep the credentials themselves.
        self._tenants: dict[int, str] = {}
        self._contended_until_s = 0.0
        self._round_ms = -1
        self._at_once = 0
        self._is_running = False
        # Read for every request, hence attributes: whether requests have to ask for a turn, and whose the last one was.
        self.is_contended = False
        self.tenant: str | None = None

    # --- Whose a request is ----------------------------------------------------------------------------------------

    def name_connection(self) -> str:
        """Return the name under which a connection waits until a tenant is known."""
        return f"connection {next(self._numbers)}"

    def note(self, tenant: str) -> None:
        """Learn that a request of a tenant is carried out."""
        if tenant == self.tenant:
            return
        if self.tenant is not None:
            self.is_contended = True
            self._contended_until_s = self._loop.time() + CONTENTION_S
        self.tenant = tenant

    def remember(self, credential: bytes, tenant: str) -> None:
        """Learn which tenant a verified credential is for."""
        if len(self._tenants) >= _MAX_CREDENTIALS:
            self._tenants.clear()
        self._tenants[hash(credential)] = tenant

    def tenant_of(self, credential: bytes) -> str | None:
        """Return the tenant of a credential that was verified before. It may have expired since, so this decides
        nothing but whose turn a request takes."""
        return self._tenants.get(hash(credential))

    # --- Turns -------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._turns.size

    def may_go_on(self) -> bool:
        """Return whether a request may be read now; if not, its connection has to `wait`."""
        if self._turns.size:
            return False
        now_s = self._loop.time()
        if now_s >= self._contended_until_s:
            self.is_contended = False
            return True
        round_ms = int(now_s * 1_000)
        if round_ms != self._round_ms:
            self._round_ms = round_ms
            self._at_once = 0
        self._at_once += 1
        return self._at_once <= MAX_AT_ONCE

    def wait(self, name: str, reader: Reader) -> None:
        """Call the reader's `take_turn` once, when it is the turn of `name`."""
        self._turns.push(name, reader)
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        turns, taken, until_s = self._turns, 0, self._now_s() + MAX_RUN_S
        try:
            while (turn := turns.pop()) is not None:
                name, reader = turn
                done = TurnTaken(1, 0)
                try:
                    done = reader.take_turn()
                finally:
                    turns.charge(name, cost_of(*done))
                taken += 1
                if taken >= MAX_TURNS or self._now_s() >= until_s:
                    break
        finally:
            self._is_running = turns.size > 0
            if self._is_running:
                # Behind the sockets that are ready by now.
                self._loop.call_soon(self._run)
