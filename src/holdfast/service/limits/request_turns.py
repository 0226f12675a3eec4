"""Turns of requests: whose bytes a server reads next while several tenants call at once (SPEC 7.3).

Doors ask here before they parse a request. A tenant that sends more than its share waits at its sockets, and nothing of
what it sends is refused for that.

    alone       the requests that come are of one tenant: a door looks at one flag, and reads on
    contended   requests of another tenant came within the last second: in each round of the event loop a few requests
                of each tenant are read at once; the others take turns by their tenants' weights, for a while in each
                round. While a tenant calls that never has to wait, this while is short, and the tenants that had to
                wait are read in turns alone: so its request is read soon after it arrives

A door tells whose request it is as soon as it knows (`note`). The request itself waited under the name that was known
before: the tenant that the same credential or the same connection had the last time, or the connection alone.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.clock import steady_s
from holdfast.dispatch.fairness import FairTurns, cost_of
from holdfast.telemetry.figures import Histogram

# After the last request of another tenant than the one before it.
CONTENTION_S = 1.0
# Requests that are read at once in one round of the loop: of one tenant, and of all. Up to here nobody pays for turns.
MAX_AT_ONCE_EACH = 8
MAX_AT_ONCE = 64
# Turns in one round while a quiet tenant calls, which waits for the end of a round at most. Rounds have a price, most
# of it the store's, which commits once in each: 64 busy tenants pay about 10 % more CPU for a call.
MAX_TURNS = 16
MAX_RUN_S = 0.001
# While all tenants that call are busy, nobody is there to gain by short rounds.
MAX_BUSY_TURNS = 128
MAX_BUSY_RUN_S = 0.004

# Upper bounds of the waits that are counted: from one round of the event loop to a flood that is not kept up with.
WAIT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)

# Callers that could not say who they are share one turn. No tenant's name has a space in it.
UNIDENTIFIED = "not identified"

_MAX_CREDENTIALS = 4_096


class TurnTaken(NamedTuple):
    """The requests that were begun in a turn, and the bytes that were parsed."""

    requests: int
    size: int


class TurnTaker(Protocol):
    """A connection that has read more than it has parsed."""

    def take_turn(self) -> TurnTaken:
        """Parse and begin the next request, or a part of a large one."""


class _Waiter(NamedTuple):
    reader: TurnTaker
    since_s: float


class RequestTurns:
    """Decides which connection of a process goes on. Shared by its doors; used from the event loop alone."""

    def __init__(
        self,
        weight_of: Callable[[str], int],
        loop: asyncio.AbstractEventLoop | None = None,
        now_s: Callable[[], float] = steady_s,
    ) -> None:
        self._turns: FairTurns[_Waiter] = FairTurns(weight_of)
        self._loop = loop or asyncio.get_running_loop()
        self._now_s = now_s
        self._numbers = itertools.count(1)
        # Tenants by the hashes of their credentials: there is no need to keep the credentials themselves.
        self._tenants: dict[int, str] = {}
        self._contended_until_s = 0.0
        # In this round of the loop.
        self._at_once: dict[str, int] = {}
        self._at_once_in_all = 0
        self._is_round_ending = False
        # Names that had to wait within this second and the one before, and names that called and did not have to.
        self._busy: set[str] = set()
        self._busy_before: set[str] = set()
        self._quiet: set[str] = set()
        self._quiet_before: set[str] = set()
        self._forget_at_s = 0.0
        self._is_quiet_around = False
        # Seconds that requests waited for their turn, those alone that had to.
        self.waits = Histogram(WAIT_BOUNDS)
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
    def has_credentials(self) -> bool:
        """Return whether any credential is known: a server without identities never sees one."""
        return bool(self._tenants)

    @property
    def waiting(self) -> int:
        """Return the number of connections that wait for a turn."""
        return self._turns.size

    def may_go_on(self, name: str) -> bool:
        """Return whether a request of `name` may be read now; if not, its connection has to `wait`."""
        count = self._at_once.get(name, 0)
        if count >= MAX_AT_ONCE_EACH or self._at_once_in_all >= MAX_AT_ONCE or self._turns.waiting(name):
            return False
        if name not in self._busy and name not in self._busy_before:
            if not count:
                self._quiet.add(name)
        elif self._is_quiet_around:
            return False
        self._at_once[name] = count + 1
        self._at_once_in_all += 1
        self._end_round_soon()
        return True

    def wait(self, name: str, reader: TurnTaker) -> None:
        """Call the reader's `take_turn` once, when it is the turn of `name`."""
        self._turns.push(name, _Waiter(reader, self._now_s()))
        self._busy.add(name)
        self._quiet.discard(name)
        self._quiet_before.discard(name)
        self._end_round_soon()

    def _end_round_soon(self) -> None:
        if not self._is_round_ending:
            self._is_round_ending = True
            # Behind the sockets that are ready by now.
            self._loop.call_soon(self._end_round)

    def _end_round(self) -> None:
        """Give turns to requests that wait, and begin a new round."""
        self._is_round_ending = False
        self._at_once.clear()
        self._at_once_in_all = 0
        now_s = self._loop.time()
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + CONTENTION_S
            self._busy_before, self._busy = self._busy, set()
            self._quiet_before, self._quiet = self._quiet, set()
        self._is_quiet_around = bool(self._quiet or self._quiet_before)
        turns = self._turns
        if turns.size:
            try:
                self._give_turns()
            finally:
                if turns.size:
                    self._end_round_soon()
        elif now_s >= self._contended_until_s:
            self.is_contended = False

    def _give_turns(self) -> None:
        most, run_s = (MAX_TURNS, MAX_RUN_S) if self._is_quiet_around else (MAX_BUSY_TURNS, MAX_BUSY_RUN_S)
        turns, taken, now_s = self._turns, 0, self._now_s()
        until_s = now_s + run_s
        while (turn := turns.pop()) is not None:
            name, (reader, since_s) = turn
            self.waits.observe(now_s - since_s)
            done = TurnTaken(1, 0)
            try:
                done = reader.take_turn()
            finally:
                turns.charge(name, cost_of(*done))
            taken += 1
            now_s = self._now_s()
            if taken >= most or now_s >= until_s:
                break
