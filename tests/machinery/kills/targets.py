"""The targets of kills: each store behind each door, with the checks of its history and its files."""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.stores.rocks.verify.store_check import verify
from tests.machinery import history as h
from tests.machinery.kills.children import Children
from tests.machinery.kills.crowd import Crowd
from tests.machinery.kills.cycles import Run, Target
from tests.machinery.kills.serving import MODULE, SERVED, SKEW_MS, free_port

# Some kills fall into the opening of the store.
_OPENINGS = 0.15
_OPENING_S = (0.0, 0.15)
_WORKING_S = (0.02, 0.5)


class EmbeddedRocks:
    """A program with the embedded store inside it, killed as a whole. With shards, messages move between them."""

    def __init__(self, name: str, shards: int) -> None:
        self.name = name
        self._shards = shards

    @contextmanager
    def begin(self, directory: Path, seed: int) -> Iterator[Run]:
        with Children("tests.machinery.kills.embedded", directory / "stderr") as children:
            yield _EmbeddedRun(directory, children, self._shards)


class _EmbeddedRun:
    def __init__(self, directory: Path, children: Children, shards: int) -> None:
        self._shards = shards
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
        self._children.begin(mode, self._store, self._history, seed, session, durability, self._shards)

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
            servers = stack.enter_context(Children(MODULE, directory / "stderr"))
            run = _ServedRun(directory, servers, seed)
            stack.callback(run.close)
            yield run


class _ServedRun:
    def __init__(self, directory: Path, servers: Children, seed: int) -> None:
        self._store = directory / "store"
        self._history = directory / "history"
        self._servers = servers
        self._say = h.FileSink(self._history)
        self._port = free_port()
        url = f"http://127.0.0.1:{self._port}"
        self._crowd = Crowd([url], self._history, seed, directory / "clients-stderr")

    def kill_once(self, number: int, dice: random.Random) -> None:
        self._serve(number, dice.choice(["fsync", "os"]))
        if not number:
            self._servers.wait_for("http://")
            self._crowd.wait_until_working()
        _kill_some_time(self._servers, dice, "http://" if number else "")
        self._crowd.check_alive()

    def drain(self, number: int) -> None:
        self._serve(number, "fsync")
        self._servers.wait_for("http://")
        self._crowd.drain()
        self._servers.kill_after(0.0)

    def _serve(self, number: int, durability: str) -> None:
        self._say(h.Opened(session=number, durability=durability))
        settings = {"data": self._store, "port": self._port, "durability": durability, **SERVED}
        self._servers.begin(*(f"{name}={value}" for name, value in settings.items()))

    def verify(self) -> list[str]:
        return _verify_rocks(self._store)

    def findings(self) -> h.Findings:
        return h.check(h.read_history(self._history), allow_refusals=True, skew_ms=SKEW_MS)

    def close(self) -> None:
        self._crowd.close()
        self._say.close()


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (EmbeddedRocks("embedded rocks", 1), EmbeddedRocks("embedded rocks with shards", 4), ServedRocks())
}


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
