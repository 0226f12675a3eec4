"""Several servers over what they share, under clients that go from one to the next: any of it is struck, at any moment.

A new store is a new `Footing`: what its servers stand on, how each of them is set up, and what can be done to it.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from tests.machinery import history as h
from tests.machinery.kills.children import Children
from tests.machinery.kills.crowd import Crowd
from tests.machinery.kills.cycles import Run
from tests.machinery.kills.load import MAX_BACKLOG
from tests.machinery.kills.serving import MODULE, SERVED, SKEW_MS, free_port

_WORKING_S = (0.1, 0.7)
_AWAY_S = (0.0, 0.3)
# So often what was struck is still away when the next fault strikes.
_OVERLAPS = 0.3
# So often a server that starts again is killed while it starts.
_OPENINGS = 0.2
_OPENING_S = (0.0, 0.3)
# Every other client repeats a call that failed so often, as programs do.
_RETRIES = 3
# A store that is reached over a network takes longer than one in the process.
_LEASE_FACTOR = 5


class Fault(Protocol):
    """One kind of thing that goes wrong."""

    name: str

    def strike(self, dice: random.Random) -> None: ...

    def mend(self, dice: random.Random, *, is_alone: bool) -> bool:
        """Repair the fault, and return whether that succeeded. With `is_alone`, there is no other fault, so it must."""


class Footing(Protocol):
    """The databases, logs or buckets that the servers use."""

    def settings(self, server: int, dice: random.Random) -> Mapping[str, object]:
        """Return the settings of this server, which is about to start."""

    def faults(self) -> Sequence[Fault]:
        """Return the faults that can be made, besides kills of servers."""

    def verify(self) -> list[str]:
        """Every invariant that is broken, looked at while the servers are at work."""

    def verify_drained(self) -> list[str]:
        """Verify the store after everything was claimed and acked, while the servers are still running."""


class ServedCluster:
    """Several servers on one footing. In every round each kind of fault strikes once, in any order."""

    def __init__(
        self,
        name: str,
        servers: int,
        footing: Callable[[Path], AbstractContextManager[Footing]],
        *,
        max_backlog: int = MAX_BACKLOG,
        module: str = MODULE,
        patience_s: int = 0,
    ) -> None:
        """`max_backlog`: what lies in the queues at most; all of it is drained in the end. `module`: whose `main` is a
        server. `patience_s`: for so long events of what a killed server was at cannot be read."""
        self.name = name
        self._servers = servers
        self._footing = footing
        self._max_backlog = max_backlog
        self._module = module
        self._patience_s = patience_s

    @contextmanager
    def begin(self, directory: Path, seed: int) -> Iterator[Run]:
        with ExitStack() as stack:
            footing = stack.enter_context(self._footing(directory))
            servers = [
                _Server(number, footing, stack.enter_context(self._children(directory, number)))
                for number in range(self._servers)
            ]
            run = _ClusterRun(directory, footing, servers, seed, self._max_backlog, self._patience_s)
            stack.callback(run.close)
            yield run

    def _children(self, directory: Path, server: int) -> Children:
        return Children(self._module, directory / f"server-{server}-stderr")


class _Server:
    def __init__(self, number: int, footing: Footing, children: Children) -> None:
        self._number = number
        self._footing = footing
        self._children = children
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def begin(self, dice: random.Random) -> None:
        settings = {"port": self._port, **SERVED, **self._footing.settings(self._number, dice)}
        self._children.begin(*(f"{name}={value}" for name, value in settings.items()))

    def wait_until_up(self) -> None:
        self._children.wait_for("http://")

    def comes_up(self) -> bool:
        """False: it ended before, having said why."""
        return self._children.comes_to("http://")

    def kill_after(self, seconds: float) -> None:
        self._children.kill_after(seconds)

    def end_at_start(self, seconds: float) -> None:
        """Killed while it starts, unless it had ended by itself."""
        if self._children.comes_to("opening"):
            self._children.kill_after(seconds, may_have_ended=True)

    def check_alive(self) -> None:
        self._children.check_alive()


class _ServerKilled:
    """kill -9 of one of the servers. While something else is away it may refuse to start again."""

    name = "server"

    def __init__(self, servers: list[_Server]) -> None:
        self._servers = servers
        self.down: _Server | None = None

    def strike(self, dice: random.Random) -> None:
        self.down = dice.choice(self._servers)
        self.down.kill_after(0.0)

    def mend(self, dice: random.Random, *, is_alone: bool) -> bool:
        assert self.down is not None
        is_killed_again, opening_s = dice.random() < _OPENINGS, dice.uniform(*_OPENING_S)
        if is_killed_again:
            self.down.begin(dice)
            self.down.end_at_start(opening_s)
        self.down.begin(dice)
        if is_alone:
            self.down.wait_until_up()
        elif not self.down.comes_up():
            return False
        self.down = None
        return True


class _Blackout:
    """Every server at once, and with them all that can happen to what they stand on: only what is on disk is left."""

    name = "blackout"

    def __init__(self, servers: list[_Server], faults: Sequence[Fault]) -> None:
        self._servers = servers
        self._faults = faults

    def strike(self, dice: random.Random) -> None:
        for server in self._servers:
            server.kill_after(0.0)
        for fault in self._faults:
            fault.strike(dice)

    def mend(self, dice: random.Random, *, is_alone: bool) -> bool:
        for fault in self._faults:
            fault.mend(dice, is_alone=True)
        for server in self._servers:
            server.begin(dice)
        for server in self._servers:
            server.wait_until_up()
        return True


class Rounds:
    """In each round every fault strikes once, in any order, and some while another is away; after it all is mended.

    `alone` strikes when nothing else is away. `last` is mended after all others: by then it has no excuse.
    """

    def __init__(self, faults: list[Fault], alone: Fault, *, last: Fault) -> None:
        self._faults = faults
        self._alone = alone
        self._last = last
        # Of this round, those to come.
        self._round: list[Fault] = []
        # What was struck before and is away yet.
        self._away: list[Fault] = []
        self.struck: dict[str, int] = {}

    def strike(self, dice: random.Random, away_s: float) -> None:
        """The next one; it is away for so long, or until the one after it has struck too."""
        if not self._round:
            self._round = dice.sample(self._faults, len(self._faults))
        fault = self._round.pop()
        if fault is self._alone:
            self.mend_all(dice)
        fault.strike(dice)
        self.struck[fault.name] = self.struck.get(fault.name, 0) + 1
        is_left = dice.random() < _OVERLAPS and self._round and fault is not self._alone
        for each in list(self._away):
            if each.mend(dice, is_alone=False):
                self._away.remove(each)
        self._away.append(fault)
        if not is_left:
            time.sleep(away_s)
            self.mend_all(dice)

    def mend_all(self, dice: random.Random) -> None:
        for fault in sorted(self._away, key=lambda each: each is self._last):
            is_mended = fault.mend(dice, is_alone=True)
            assert is_mended, f"{fault.name} did not come back"
        self._away.clear()


class _ClusterRun:
    def __init__(
        self,
        directory: Path,
        footing: Footing,
        servers: list[_Server],
        seed: int,
        max_backlog: int,
        patience_s: int,
    ) -> None:
        self._max_backlog = max_backlog
        self._patience_s = patience_s
        self._history = directory / "history"
        self._footing = footing
        self._servers = servers
        self._killing = _ServerKilled(servers)
        blackout = _Blackout(servers, footing.faults())
        self._rounds = Rounds([self._killing, blackout, *footing.faults()], blackout, last=self._killing)
        self._crowd: Crowd | None = None
        self._seed = seed
        self._directory = directory
        self._is_drained = False

    def kill_once(self, number: int, dice: random.Random) -> None:
        if self._crowd is None:
            self._crowd = self._start(dice)
        time.sleep(dice.uniform(*_WORKING_S))
        self._check_alive()
        self._rounds.strike(dice, dice.uniform(*_AWAY_S))

    def drain(self, number: int) -> None:
        assert self._crowd is not None
        self._rounds.mend_all(random.Random(number))
        self._check_alive()
        self._crowd.drain()
        self._is_drained = True

    def verify(self) -> list[str]:
        return self._footing.verify_drained() if self._is_drained else self._footing.verify()

    def findings(self) -> h.Findings:
        findings = h.check(h.read_history(self._history), allow_refusals=True, repeats_calls=True, skew_ms=SKEW_MS)
        findings.counts.update({f"struck: {name}": times for name, times in self._rounds.struck.items()})
        return findings

    def close(self) -> None:
        if self._crowd is not None:
            self._crowd.close()

    def _start(self, dice: random.Random) -> Crowd:
        for server in self._servers:
            server.begin(dice)
        for server in self._servers:
            server.wait_until_up()
        urls = [server.url for server in self._servers]
        errors = self._directory / "clients-stderr"
        crowd = Crowd(
            urls,
            self._history,
            self._seed,
            errors,
            retries=_RETRIES,
            lease_factor=_LEASE_FACTOR,
            max_backlog=self._max_backlog,
            patience_s=self._patience_s,
        )
        crowd.wait_until_working()
        return crowd

    def _check_alive(self) -> None:
        assert self._crowd is not None
        self._crowd.check_alive()
        for server in self._servers:
            if server is not self._killing.down:
                server.check_alive()
