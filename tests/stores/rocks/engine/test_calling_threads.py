"""Blocking callers sync on their own threads: one of them leads a commit for all, and another one leads the next."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.blocking import Holdfast
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import threads as runtime_threads
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine import sync_pacing
from holdfast.stores.rocks.engine.database import Database
from tests.crash.rocks import core_of, open_store, verify_store
from tests.waiting import wait_until

PATIENCE_S = 60.0


class HeldSyncs:
    """A hold on the first sync after `hold`, and a record of the threads that sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.error: BaseException | None = None
        self._is_held = threading.Event()
        self._go_on: threading.Event | None = None
        sync = Database.sync

        def held(database: Database, pending: Any) -> None:
            self.threads.append(threading.current_thread().name)
            go_on, self._go_on = self._go_on, None
            if go_on is not None:
                self._is_held.set()
                assert go_on.wait(PATIENCE_S), "the sync was never let go"
                if self.error is not None:
                    raise self.error
            sync(database, pending)

        monkeypatch.setattr(Database, "sync", held)
        # However slow the disk of this machine is.
        monkeypatch.setattr(sync_pacing, "_SHORT_SYNC_S", math.inf)

    @contextmanager
    def hold(self) -> Iterator[Callable[[], None]]:
        """Hold the next sync. Return a function that waits until it has begun."""
        self.threads.clear()
        self._go_on = go_on = threading.Event()
        try:
            yield lambda: wait_until(self._is_held.is_set)
        finally:
            go_on.set()


class Caller:
    """A thread that enqueues one message."""

    def __init__(self, hf: Holdfast, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._hf = hf
        self._thread = threading.Thread(target=self._enqueue, name=name, daemon=True)
        self._thread.start()

    def _enqueue(self) -> None:
        try:
            self._hf.queue("mail").enqueue(self.name.encode())
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} waits for ever"


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> HeldSyncs:
    return HeldSyncs(monkeypatch)


@contextmanager
def opened(path: Path) -> Iterator[Holdfast]:
    with open_store(path, durability="fsync") as hf:
        # The sweep that follows an opening would share a caller's commit.
        core_of(hf).sweeper.close()
        yield hf


@pytest.fixture
def hf(tmp_path: Path, syncs: HeldSyncs) -> Iterator[Holdfast]:
    with opened(tmp_path / "store") as hf:
        hf.queue("mail").enqueue(b"first")
        yield hf
    verify_store(tmp_path / "store", "at the end")


def start_waiting(hf: Holdfast, names: list[str]) -> list[Caller]:
    """Start callers one after the other. Each starts once the previous one waits behind the held sync."""
    store = core_of(hf).store
    assert isinstance(store, RocksStore)
    callers: list[Caller] = []
    for name in names:
        callers.append(Caller(hf, name))
        wait_until(lambda: len(store._engine._waiting) == len(callers))
    return callers


def queued(hf: Holdfast) -> list[bytes]:
    return sorted(message.payload for message in hf.queue("mail").claim(100))


def test_those_who_come_during_a_sync_share_the_next_one_which_the_first_of_them_leads(
    hf: Holdfast, syncs: HeldSyncs
) -> None:
    with syncs.hold() as has_begun:
        leader = Caller(hf, "leader")
        has_begun()
        others = start_waiting(hf, ["a", "b", "c", "d"])
    for caller in (leader, *others):
        caller.join()
    assert syncs.threads == ["leader", "a"]
    assert queued(hf) == [b"a", b"b", b"c", b"d", b"first", b"leader"]


def test_a_lone_caller_whose_syncs_take_long_hands_them_over_and_callers_that_wait_for_each_other_do_not(
    hf: Holdfast, syncs: HeldSyncs
) -> None:
    store = core_of(hf).store
    assert isinstance(store, RocksStore)
    store._engine._pacing.paused_until_s = math.inf
    with syncs.hold() as has_begun:
        lone = Caller(hf, "lone")
        has_begun()
        others = start_waiting(hf, ["a", "b"])
    for caller in (lone, *others):
        caller.join()
    assert syncs.threads == ["holdfast-offload_0", "a"]
    syncs.threads.clear()
    Caller(hf, "later").join()
    Caller(hf, "last").join()
    assert syncs.threads == ["later", "holdfast-offload_0"], "it has company until a sync without"
    assert queued(hf) == [b"a", b"b", b"first", b"last", b"later", b"lone"]


def test_a_claim_leaves_the_next_sync_to_the_caller_that_was_chosen_to_lead_it(
    hf: Holdfast, syncs: HeldSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SlowToWake(monkeypatch, "slow")
    with syncs.hold() as has_begun:
        leader = Caller(hf, "leader")
        has_begun()
        [slow] = start_waiting(hf, ["slow"])
    leader.join()
    assert queued(hf) == [b"first", b"leader"], "the other is not yet on disk"
    assert syncs.threads == ["leader"]
    gate.wakes_up()
    slow.join()
    assert syncs.threads == ["leader", "slow"]
    assert queued(hf) == [b"slow"]


def test_a_caller_that_comes_before_the_next_leader_has_woken_up_syncs_for_it(
    hf: Holdfast, syncs: HeldSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SlowToWake(monkeypatch, "slow")
    with syncs.hold() as has_begun:
        leader = Caller(hf, "leader")
        has_begun()
        [slow] = start_waiting(hf, ["slow"])
    leader.join()
    quick = Caller(hf, "quick")
    quick.join()
    gate.wakes_up()
    slow.join()
    assert syncs.threads == ["leader", "quick"]
    assert queued(hf) == [b"first", b"leader", b"quick", b"slow"]


def test_if_the_next_leader_is_interrupted_another_leads(
    hf: Holdfast, syncs: HeldSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SlowToWake(monkeypatch, "interrupted", raises=KeyboardInterrupt())
    with syncs.hold() as has_begun:
        leader = Caller(hf, "leader")
        has_begun()
        interrupted, other = start_waiting(hf, ["interrupted", "other"])
    leader.join()
    gate.wakes_up()
    interrupted.join()
    other.join()
    assert isinstance(interrupted.error, KeyboardInterrupt)
    assert (leader.error, other.error) == (None, None)
    assert syncs.threads == ["leader", "other"]
    assert queued(hf) == [b"first", b"interrupted", b"leader", b"other"]


def test_a_caller_that_was_interrupted_while_it_waited_is_not_chosen_to_lead(
    hf: Holdfast, syncs: HeldSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SlowToWake(monkeypatch, "interrupted", raises=KeyboardInterrupt(), is_waiting=False)
    with syncs.hold() as has_begun:
        leader = Caller(hf, "leader")
        has_begun()
        interrupted, other = start_waiting(hf, ["interrupted", "other"])
        gate.wakes_up()
        interrupted.join()
    leader.join()
    other.join()
    assert isinstance(interrupted.error, KeyboardInterrupt)
    assert syncs.threads == ["leader", "other"]


def test_if_a_leader_is_interrupted_during_its_sync_those_who_wait_are_answered_by_the_next(
    hf: Holdfast, syncs: HeldSyncs
) -> None:
    syncs.error = KeyboardInterrupt()
    with syncs.hold() as has_begun:
        leader = Caller(hf, "leader")
        has_begun()
        [other] = start_waiting(hf, ["other"])
    leader.join()
    other.join()
    assert isinstance(leader.error, KeyboardInterrupt)
    assert other.error is None
    assert syncs.threads == ["leader", "other"]
    assert queued(hf) == [b"first", b"leader", b"other"]


def test_a_failed_sync_of_a_leader_is_raised_to_all_who_wait(tmp_path: Path, syncs: HeldSyncs) -> None:
    with opened(tmp_path / "store") as hf:
        hf.queue("mail").enqueue(b"answered")
        syncs.error = OSError(5, "the disk failed")
        with syncs.hold() as has_begun:
            leader = Caller(hf, "leader")
            has_begun()
            others = start_waiting(hf, ["a", "b"])
        for caller in (leader, *others):
            caller.join()
            assert isinstance(caller.error, StoreUnavailable)
            assert "the disk failed" in str(caller.error)
    verify_store(tmp_path / "store", "after the failure")
    with open_store(tmp_path / "store") as again:
        assert b"answered" in queued(again)


class SlowToWake:
    """A gate that stops one thread after its wait for a ticket, or interrupts the wait, until the test opens it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        thread: str,
        *,
        raises: BaseException | None = None,
        is_waiting: bool = True,
    ) -> None:
        self._goes_on = goes_on = threading.Event()

        class Gate:
            def __init__(self) -> None:
                self._lock = threading.Lock()
                self.release = self._lock.release

            def acquire(self) -> None:
                if threading.current_thread().name != thread or not self._lock.locked() or goes_on.is_set():
                    self._lock.acquire()
                    return
                if is_waiting:
                    self._lock.acquire()
                assert goes_on.wait(PATIENCE_S), "the caller was never told to go on"
                if raises is not None:
                    raise raises

        monkeypatch.setattr(runtime_threads, "allocate_lock", Gate)

    def wakes_up(self) -> None:
        self._goes_on.set()
