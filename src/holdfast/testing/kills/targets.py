"""What is killed: each store behind each door, and how its history and its files are looked at."""

import random
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.stores.rocks.verify import verify
from holdfast.testing import history as h
from holdfast.testing.kills.children import PATIENCE_S, Children
from holdfast.testing.kills.cycles import Run, Target
from holdfast.testing.kills.load import MAX_PAYLOAD

# Some kills fall into the opening of the store.
_OPENINGS = 0.15
_OPENING_S = (0.0, 0.15)
_WORKING_S = (0.02, 0.5)
# Client and server read one clock, each from its own start.
_SKEW_MS = 25


class EmbeddedRocks:
    """A program with the embedded store inside it, killed as a whole."""

    name = "embedded rocks"

    @contextmanager
    def begin(self, directory: Path, seed: int) -> Iterator[Run]:
        with Children("holdfast.testing.kills.embedded", directory / "stderr") as children:
            yield _EmbeddedRun(directory, children)


class _EmbeddedRun:
    def __init__(self, directory: Path, children: Children) -> None:
        self._store = directory / "store"
        self._history = directory / "history"
        self._children = children

    def kill_once(self, number: int, dice: random.Random) -> None:
        self._begin("run", dice.randrange(1 << 32), number, dice.choice(["fsync", "os"]))
        _kill_some_time(self._children, dice, "ready")

    def drain(self, number: int) -> None:
        self._begin("drain", 0, number, "fsync")
        self._children.finish()

    def _begin(self, mode: str, seed: int, session: int, durability: str) -> None:
        self._children.begin(mode, self._store, self._history, seed, session, durability)

    def verify(self) -> list[str]:
        return _verify_rocks(self._store)

    def findings(self) -> h.Findings:
        return h.check(h.read_history(self._history))


class ServedRocks:
    """`holdfast serve` on the embedded store, killed and restarted under clients that live on."""

    name = "served rocks"

    @contextmanager
    def begin(self, directory: Path, seed: int) -> Iterator[Run]:
        with ExitStack() as stack:
            servers = stack.enter_context(Children("holdfast.testing.kills.server", directory / "stderr"))
            run = _ServedRun(directory, servers, seed)
            stack.callback(run.close)
            yield run


class _ServedRun:
    def __init__(self, directory: Path, servers: Children, seed: int) -> None:
        self._store = directory / "store"
        self._history = directory / "history"
        self._servers = servers
        self._say = h.FileSink(self._history)
        self._port = _free_port()
        self._errors = directory / "clients-stderr"
        arguments = [f"http://127.0.0.1:{self._port}", self._history, seed]
        with self._errors.open("wb") as errors:
            self._clients = subprocess.Popen(
                [sys.executable, "-m", "holdfast.testing.kills.clients", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def kill_once(self, number: int, dice: random.Random) -> None:
        self._serve(number, dice.choice(["fsync", "os"]))
        if not number:
            self._servers.wait_for("http://")
            self._wait_for_clients(b"working\n")
        _kill_some_time(self._servers, dice, "http://" if number else "")
        if self._clients.poll() is not None:
            raise AssertionError(f"the clients ended by themselves: {self._told()}")

    def drain(self, number: int) -> None:
        self._serve(number, "fsync")
        self._servers.wait_for("http://")
        assert self._clients.stdin is not None
        self._clients.stdin.close()
        self._wait_for_clients(b"drained\n")
        if self._clients.wait(PATIENCE_S):
            raise AssertionError(f"the clients failed: {self._told()}")
        self._servers.kill_after(0.0)

    def _serve(self, number: int, durability: str) -> None:
        self._say(h.Opened(session=number, durability=durability))
        settings = {
            "data": self._store,
            "port": self._port,
            "durability": durability,
            "max_payload": MAX_PAYLOAD,
            "queue_max_consumers": 128,
        }
        self._servers.begin(*(f"{name}={value}" for name, value in settings.items()))

    def _wait_for_clients(self, word: bytes) -> None:
        assert self._clients.stdout is not None
        ready, _, _ = select.select([self._clients.stdout], [], [], PATIENCE_S)
        said = self._clients.stdout.readline() if ready else b""
        if said != word:
            raise AssertionError(f"the clients did not come to {word!r} but to {said!r}: {self._told()}")

    def _told(self) -> str:
        return self._errors.read_text(errors="replace")[-4_000:]

    def verify(self) -> list[str]:
        return _verify_rocks(self._store)

    def findings(self) -> h.Findings:
        return h.check(h.read_history(self._history), allow_refusals=True, skew_ms=_SKEW_MS)

    def close(self) -> None:
        if self._clients.poll() is None:
            self._clients.kill()
            self._clients.wait(PATIENCE_S)
        for pipe in (self._clients.stdin, self._clients.stdout):
            if pipe is not None:
                pipe.close()
        self._say.close()


TARGETS: Mapping[str, Target] = {target.name: target for target in (EmbeddedRocks(), ServedRocks())}


def _kill_some_time(children: Children, dice: random.Random, ready_word: str) -> None:
    """Most kills fall while the store is in use, some while it is being opened. The dice roll the same for all."""
    is_opening, opening_s, working_s = dice.random() < _OPENINGS, dice.uniform(*_OPENING_S), dice.uniform(*_WORKING_S)
    if is_opening and ready_word:
        children.wait_for("opening")
        children.kill_after(opening_s)
        return
    if ready_word:
        children.wait_for(ready_word)
    children.kill_after(working_s)


def _verify_rocks(store: Path) -> list[str]:
    if not (store / "HOLDFAST").exists():
        return []  # killed before it was ever made
    return [str(each) for each in verify(store).violations]


def _free_port() -> int:
    """For a server that is started again at the same address. Somebody else may take it meanwhile: then it says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
