"""The window on an ordered key space shows the same keys as a plain sorted list."""

from bisect import bisect_left

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from holdfast.stores.rocks.queues import window as module
from holdfast.stores.rocks.queues.window import Window

CAPACITY = 6
REFILL = 3

_keys = st.integers(0, 40).map(lambda number: number.to_bytes(2, "big"))
_picks = st.integers(0, 1 << 16)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make windows so small that a few keys are read in steps and left to the disk again."""
    monkeypatch.setattr(module, "CAPACITY", CAPACITY)
    monkeypatch.setattr(module, "REFILL", REFILL)


class Disk:
    """A sorted list of keys. It includes uncommitted keys, which a scan skips."""

    def __init__(self, keys: list[bytes] | None = None) -> None:
        self.keys = sorted(keys or [])
        self.uncommitted: set[bytes] = set()
        self.scans: list[bytes] = []

    def add(self, key: bytes) -> None:
        if key not in self.keys:
            self.keys.insert(bisect_left(self.keys, key), key)

    def remove(self, key: bytes) -> None:
        self.keys.remove(key)
        self.uncommitted.discard(key)

    def scan(self, from_key: bytes, limit: int) -> list[bytes]:
        self.scans.append(from_key)
        shown = [key for key in self.keys if key >= from_key and key not in self.uncommitted]
        return shown[:limit]


def filled(number: int) -> tuple[Disk, Window]:
    disk = Disk([each.to_bytes(2, "big") for each in range(number)])
    return disk, Window(disk.scan, is_empty=False)


def drained(window: Window) -> list[bytes]:
    shown = []
    while (key := window.peek()) is not None:
        assert window.pop() == key
        shown.append(key)
    return shown


class WindowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.window = Window(self.disk.scan, is_empty=True)
        # Popped, and not yet gone from the disk: a claim takes keys first and deletes them later in its step.
        self.taken: set[bytes] = set()

    def shown(self) -> list[bytes]:
        return [key for key in self.disk.keys if key not in self.taken and key not in self.disk.uncommitted]

    @rule(keys=st.lists(_keys, max_size=20))
    def reopen_with_more(self, keys: list[bytes]) -> None:
        for key in keys:
            self.disk.add(key)
        self.disk.uncommitted.clear()
        self.taken.clear()
        self.window = Window(self.disk.scan, is_empty=not self.disk.keys)

    @rule(key=_keys)
    def push(self, key: bytes) -> None:
        if key not in self.taken:
            self.disk.add(key)
            self.disk.uncommitted.discard(key)
            self.window.push(key)

    @rule(key=_keys)
    def write_uncommitted(self, key: bytes) -> None:
        if key not in self.disk.keys:
            self.disk.add(key)
            self.disk.uncommitted.add(key)

    @precondition(lambda self: self.disk.uncommitted)
    @rule(pick=_picks)
    def commit(self, pick: int) -> None:
        key = sorted(self.disk.uncommitted)[pick % len(self.disk.uncommitted)]
        self.disk.uncommitted.discard(key)
        self.window.push(key)

    @rule()
    def pop(self) -> None:
        key = self.window.peek()
        if key is not None:
            assert self.window.pop() == key
            self.taken.add(key)

    @rule(bound=_keys, limit=st.integers(1, 8))
    def pop_below(self, bound: bytes, limit: int) -> None:
        expected = [key for key in self.shown() if key < bound][:limit]
        assert self.window.pop_below(bound, limit) == expected
        self.taken.update(expected)

    @precondition(lambda self: self.taken)
    @rule(pick=_picks)
    def delete_taken(self, pick: int) -> None:
        key = sorted(self.taken)[pick % len(self.taken)]
        self.taken.discard(key)
        self.disk.remove(key)
        self.window.discard(key)

    @precondition(lambda self: self.taken)
    @rule(pick=_picks)
    def show_taken_again(self, pick: int) -> None:
        key = sorted(self.taken)[pick % len(self.taken)]
        self.taken.discard(key)
        self.window.push(key)

    @precondition(lambda self: self.disk.keys)
    @rule(pick=_picks)
    def discard(self, pick: int) -> None:
        key = self.disk.keys[pick % len(self.disk.keys)]
        self.taken.discard(key)
        self.disk.remove(key)
        self.window.discard(key)

    @rule(number=st.integers(1, 12))
    def first(self, number: int) -> None:
        assert self.window.first(number) == self.shown()[:number]

    @rule(number=st.integers(0, 8))
    def ensure(self, number: int) -> None:
        self.window.ensure(number)
        scans = len(self.disk.scans)
        # So many can go now without a read.
        for key in self.shown()[:number]:
            self.disk.remove(key)
            self.window.discard(key)
        self.window.peek()
        assert len(self.disk.scans) == scans

    @invariant()
    def peek_shows_the_first_key(self) -> None:
        assert self.window.peek() == next(iter(self.shown()), None)

    @invariant()
    def memory_is_bounded(self) -> None:
        # `ensure` may ask for more than the capacity; nothing else goes beyond it by more than a refill or a doubling.
        assert len(self.window) <= 2 * CAPACITY + 12 + REFILL
        assert self.window.held <= 2 * (2 * CAPACITY + 12 + REFILL) + REFILL

    def teardown(self) -> None:
        assert drained(self.window) == self.shown()


@pytest.mark.spec("4.2")
@pytest.mark.slow
def test_a_window_shows_what_a_sorted_list_would() -> None:
    run_state_machine_as_test(
        WindowMachine,
        settings=settings(
            max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )


def test_an_empty_window_never_reads() -> None:
    disk = Disk()
    window = Window(disk.scan, is_empty=True)
    assert window.peek() is None
    window.push(b"a")
    assert drained(window) == [b"a"]
    assert not disk.scans


@pytest.mark.spec("4.2", "7.1")
def test_a_window_reads_on_in_small_steps_and_never_from_the_start_again() -> None:
    disk, window = filled(10)
    for _ in range(10):
        key = window.peek()
        assert key is not None
        window.pop()
        disk.remove(key)
    assert window.peek() is None
    assert disk.scans == sorted(set(disk.scans))
    assert len(disk.scans) == 4


def test_a_full_window_leaves_new_keys_at_the_far_end_to_the_disk() -> None:
    disk = Disk()
    window = Window(disk.scan, is_empty=True)
    for number in range(100):
        key = number.to_bytes(2, "big")
        disk.add(key)
        window.push(key)
    assert len(window) == CAPACITY
    assert drained(window) == disk.keys


@pytest.mark.spec("4.2")
def test_a_window_that_is_filled_at_the_near_end_gives_the_far_end_back_to_the_disk() -> None:
    disk = Disk()
    window = Window(disk.scan, is_empty=True)
    for number in reversed(range(100)):
        key = number.to_bytes(2, "big")
        disk.add(key)
        window.push(key)
        assert len(window) <= 2 * CAPACITY
    assert drained(window) == disk.keys


def test_what_is_pushed_twice_is_shown_once() -> None:
    disk, window = filled(2)
    assert window.peek() == b"\0\0"
    window.push(b"\0\0")
    assert drained(window) == disk.keys


def test_what_was_discarded_and_pushed_again_is_shown_once() -> None:
    disk, window = filled(2)
    window.peek()
    window.discard(b"\0\0")
    window.push(b"\0\0")
    assert drained(window) == disk.keys


@pytest.mark.spec("4.2")
def test_many_discards_leave_no_pile_behind() -> None:
    disk, window = filled(0)
    for number in range(1_000):
        key = number.to_bytes(2, "big")
        disk.add(key)
        window.push(key)
        disk.remove(key)
        window.discard(key)
    assert window.held <= REFILL + 1
