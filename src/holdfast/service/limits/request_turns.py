"""Turns of requests: the order in which a server parses the requests of several tenants (SPEC 7.3).

Doors ask for a turn before they parse a request. Requests of a tenant that sends more than its share wait at their
sockets; none of them is refused for that.

    alone       All recent requests belong to one tenant. A door checks one flag, and parses.
    contended   There were requests of another tenant within the last second. In each round of the event loop a few
                requests of each tenant are parsed at once. The others take turns by the weights of their tenants, for a
                limited time in each round. While there is a tenant that never had to wait, this time is short, and the
                tenants that had to wait are served by turns only. The request of such a tenant is then parsed soon
                after it arrives.

A door reports the tenant of a request as soon as it is known (`note`). The request itself waits under the name known
before: the tenant that the same credential or the same connection had the last time, or the connection.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.clock import steady_s
from holdfast.dispatch.fairness import FairTurns, cost_of
from holdfast.telemetry.figures import Histogram

# The time for which contention lasts after the last request of another tenant than that of the request before it.
CONTENTION_S = 1.0
# The maximum numbers of requests that are parsed at once in one round of the loop, of one tenant and of all. Turns cost
# nothing up to these numbers.
MAX_AT_ONCE_EACH = 8
MAX_AT_ONCE = 64
# The limits of one round while there is a quiet tenant, which waits for the end of a round at most. A round has a cost,
# mostly in the store, which commits once per round: with 64 busy tenants a call costs about 10 % more CPU.
MAX_TURNS = 16
MAX_RUN_S = 0.001
# The limits of one round while all tenants are busy, so that no tenant would profit from short rounds.
MAX_BUSY_TURNS = 128
MAX_BUSY_RUN_S = 0.004

# Upper bounds for the histogram of waits, in seconds: from one round of the event loop to a permanent overload.
WAIT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)

# Callers without valid credentials share one turn. The name cannot be a tenant's, because of the space.
UNIDENTIFIED = "not identified"

_MAX_CREDENTIALS = 4_096


class TurnTaken(NamedTuple):
    """The number of requests that were started in a turn, and the number of bytes that were parsed."""

    requests: int
    size: int


class TurnTaker(Protocol):
    """A connection with bytes that were read but not yet parsed."""

    def take_turn(self) -> TurnTaken:
        """Parse and start the next request, or parse a part of a large one."""


class _Waiter(NamedTuple):
    reader: TurnTaker
    since_s: float


class RequestTurns:
    """The turns of all connections of a process. Its doors share one object, and use it on the event loop only."""

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
        # Tenants by the hash of their credential, so that the credentials themselves are not kept.
        self._tenants: dict[int, str] = {}
        self._contended_until_s = 0.0
        # The numbers of requests that were parsed at once in this round of the loop, by name and in all.
        self._at_once: dict[str, int] = {}
        self._at_once_in_all = 0
        self._is_round_ending = False
        # Names that had to wait in this second and in the one before, and names with requests that did not have to.
        self._busy: set[str] = set()
        self._busy_before: set[str] = set()
        self._quiet: set[str] = set()
        self._quiet_before: set[str] = set()
        self._forget_at_s = 0.0
        self._is_quiet_around = False
        # The waiting times in seconds of the requests that had to wait.
        self.waits = Histogram(WAIT_BOUNDS)
        # Whether requests have to ask for a turn, and the tenant of the last request. They are attributes because they
        # are read for every request.
        self.is_contended = False
        self.tenant: str | None = None

    # --- Tenants of requests ---------------------------------------------------------------------------------------

    def name_connection(self) -> str:
        """Return the name under which a connection waits until a tenant is known."""
        return f"connection {next(self._numbers)}"

    def note(self, tenant: str) -> None:
        """Take note of a request of this tenant."""
        if tenant == self.tenant:
            return
        if self.tenant is not None:
            self.is_contended = True
            self._contended_until_s = self._loop.time() + CONTENTION_S
        self.tenant = tenant

    def remember(self, credential: bytes, tenant: str) -> None:
        """Remember the tenant of a verified credential."""
        if len(self._tenants) >= _MAX_CREDENTIALS:
            self._tenants.clear()
        self._tenants[hash(credential)] = tenant

    def tenant_of(self, credential: bytes) -> str | None:
        """Return the tenant of a credential that was verified before, or None.

        The credential may have expired since, so use the result for turns only.
        """
        return self._tenants.get(hash(credential))

    # --- Turns -------------------------------------------------------------------------------------------------------

    @property
    def has_credentials(self) -> bool:
        """Return whether any credential is known. A server without authentication never has one."""
        return bool(self._tenants)

    @property
    def waiting(self) -> int:
        """Return the number of connections that wait for a turn."""
        return self._turns.size

    def may_go_on(self, name: str) -> bool:
        """Return whether a request of `name` may be parsed now. If not, its connection has to `wait`."""
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
        """Call `reader.take_turn` once, when it is the turn of `name`."""
        self._turns.push(name, _Waiter(reader, self._now_s()))
        self._busy.add(name)
        self._quiet.discard(name)
        self._quiet_before.discard(name)
        self._end_round_soon()

    def _end_round_soon(self) -> None:
        if not self._is_round_ending:
            self._is_round_ending = True
            # The round ends after the loop has handled the sockets that are ready now.
            self._loop.call_soon(self._end_round)

    def _end_round(self) -> None:
        """Give turns to waiting requests, and start a new round."""
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
