"""Threads share the syncs of a directory, and none returns before a sync that began after its change."""

import os
import threading
from pathlib import Path

import pytest

from holdfast.stores.objects.buckets import directory_syncs
from holdfast.stores.objects.buckets.directory_syncs import DirectorySyncs

WAITERS = 8


class _Syncs:
    """Syncs of a directory that end when `may_end` is set; each notes the names that it covered."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.covered: list[set[str]] = []
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def sync(self, directory: str | os.PathLike[str]) -> None:
        self.covered.append(set(self.names))
        self.has_begun.set()
        assert self.may_end.wait(30)


def test_a_sync_covers_all_threads_that_waited_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made, shared, unsynced = _Syncs(), DirectorySyncs(), list[str]()
    monkeypatch.setattr(directory_syncs, "sync_directory", made.sync)

    def write(name: str) -> None:
        made.names.add(name)
        shared.sync("/queue")
        if not any(name in names for names in made.covered):
            unsynced.append(name)

    first = threading.Thread(target=write, args=("first",))
    first.start()
    assert made.has_begun.wait(30)
    others = [threading.Thread(target=write, args=(str(number),)) for number in range(WAITERS)]
    for thread in others:
        thread.start()
    while shared._directories["/queue"].wanted < 1 + WAITERS:
        threading.Event().wait(0.001)
    made.may_end.set()
    for thread in (first, *others):
        thread.join(30)
    assert unsynced == []
    assert len(made.covered) == 2


def test_each_thread_learns_of_a_sync_that_failed(tmp_path: Path) -> None:
    shared = DirectorySyncs()
    with pytest.raises(FileNotFoundError):
        shared.sync(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        shared.sync(tmp_path / "missing")
