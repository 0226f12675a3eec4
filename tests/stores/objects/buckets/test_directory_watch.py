"""Waiting on a directory that other processes write into (SPEC 6.3).

Each opening is a separate store, like a separate process. Time stands still unless a test advances the clock, so polls
wake nobody: the watch does.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SystemDice
from holdfast.model.names import QueueRef
from holdfast.server.embedded import Embedded, open_on_loop
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets import directory_watch as watch
from holdfast.stores.objects.buckets.directory_watch import DirectoryWatch, file_system_type, is_remote
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.testing import ManualClock
from tests.stores.objects.stepping import stepped

_BROKEN_AFTER_S = 30.0
_POLL_MS = 3_000


def _watch_of(hf: AsyncHoldfast) -> DirectoryWatch:
    transport = hf._transport
    assert isinstance(transport, Embedded)
    store = transport.core.store
    assert isinstance(store, ObjectStore)
    assert store._watch is not None
    return store._watch


def _open(path: Path, clock: ManualClock | None = None) -> AsyncHoldfast:
    store = ObjectStore(DiskBucket(path, syncs=False), SystemDice(), journal_retention_ms=86_400_000, poll_ms=_POLL_MS)
    return open_on_loop("", {}, clock=clock or ManualClock(), store=store)


async def _until(is_so: Callable[[], object]) -> None:
    """Wait for inotify, which reports events in its own time."""
    async with asyncio.timeout(_BROKEN_AFTER_S):
        while not is_so():
            await asyncio.sleep(0)


@pytest.mark.spec("6.3")
async def test_a_waiting_claim_wakes_when_another_process_enqueues(tmp_path: Path) -> None:
    async with _open(tmp_path) as mine, _open(tmp_path) as others:
        await others.queue("q").enqueue("before")
        [message] = await mine.queue("q").claim()
        await message.ack()
        waiting = asyncio.create_task(mine.queue("q").claim(wait=None))
        await _until(lambda: QueueRef("default", "q") in _watch_of(mine)._watches)
        await others.queue("q").enqueue("after")
        async with asyncio.timeout(_BROKEN_AFTER_S):
            [message] = await waiting
        assert message.json() == "after"


@pytest.mark.parametrize("tenant", ["known", "new"])
async def test_the_first_message_of_a_queue_that_does_not_exist_yet_wakes_its_waiter(
    tmp_path: Path, tenant: str
) -> None:
    async with _open(tmp_path) as mine, _open(tmp_path) as others:
        await others.queue("other", tenant="known").enqueue("before")
        waiting = asyncio.create_task(mine.queue("q", tenant=tenant).claim(wait=None))
        await _until(lambda: QueueRef(tenant, "q") in _watch_of(mine)._watches)
        await others.queue("q", tenant=tenant).enqueue("first")
        async with asyncio.timeout(_BROKEN_AFTER_S):
            [message] = await waiting
        assert message.json() == "first"
        assert not _watch_of(mine).polled


async def test_many_queues_that_do_not_exist_yet_share_a_watch_and_wake_each_their_own(tmp_path: Path) -> None:
    names, clock = [f"q{number}" for number in range(5)], ManualClock()
    async with _open(tmp_path, clock) as mine, _open(tmp_path) as others:
        waiting = [asyncio.create_task(mine.queue(name).claim(wait=None)) for name in names]
        await _until(lambda: len(_watch_of(mine)._watches) == len(names))
        assert len(_watch_of(mine)._refs) == 1
        for name in reversed(names):
            await others.queue(name).enqueue(name)
        async with asyncio.timeout(_BROKEN_AFTER_S):
            assert [[m.json() for m in await each] for each in waiting] == [[name] for name in names]
        async with stepped(clock):
            await _until(lambda: not _watch_of(mine)._watches)
        assert not _watch_of(mine)._refs


async def test_directories_made_while_the_watch_is_placed_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a queue's directories appear right after its watch looked for them, and before inotify could report it."""
    nearest = DirectoryWatch._add_nearest
    missed: list[int] = []

    def make_them_then(self: DirectoryWatch, names: list[str]) -> tuple[object, int]:
        found = nearest(self, names)
        missed.append(found[1])
        tmp_path.joinpath(*names[: found[1] + 1]).mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(DirectoryWatch, "_add_nearest", make_them_then)
    async with _open(tmp_path) as mine, _open(tmp_path) as others:
        waiting = asyncio.create_task(mine.queue("q").claim(wait=None))
        await _until(lambda: QueueRef("default", "q") in _watch_of(mine)._watches)
        assert missed == [0, 1, 2, 3, 4]
        assert _watch_of(mine)._watches[QueueRef("default", "q")].awaits is None
        await others.queue("q").enqueue("first")
        async with asyncio.timeout(_BROKEN_AFTER_S):
            assert [message.json() for message in await waiting] == ["first"]


async def test_a_queue_whose_directory_was_removed_is_watched_again_when_it_is_back(tmp_path: Path) -> None:
    ref = QueueRef("default", "q")
    async with _open(tmp_path) as mine, _open(tmp_path) as others:
        await others.queue("q").set_policy()
        folder = tmp_path / "default" / "q" / "q" / "msg"
        folder.mkdir(exist_ok=True)
        waiting = asyncio.create_task(mine.queue("q").claim(wait=None))
        await _until(lambda: ref in _watch_of(mine)._watches)
        folder.rmdir()
        await _until(lambda: _watch_of(mine)._watches[ref].awaits == "msg")
        await others.queue("q").enqueue("after")
        async with asyncio.timeout(_BROKEN_AFTER_S):
            assert [message.json() for message in await waiting] == ["after"]


@pytest.mark.spec("6.3")
async def test_a_watch_ends_with_its_last_waiter(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _open(tmp_path, clock) as mine:
        await mine.queue("q").enqueue("a")
        assert await mine.queue("q").claim(wait=0.2)
        async with stepped(clock):
            assert await mine.queue("q").claim(wait=0.05) == []
            await _until(lambda: not _watch_of(mine)._watches)
        assert not _watch_of(mine).polled


@pytest.mark.spec("6.3")
async def test_a_queue_whose_watch_fails_is_polled_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add = DirectoryWatch._add

    def fail_for_one(self: DirectoryWatch, ref: QueueRef) -> object:
        if ref.queue == "broken":
            raise OSError(28, "No space left on device")  # what inotify says when there are too many watches
        return add(self, ref)

    monkeypatch.setattr(DirectoryWatch, "_add", fail_for_one)
    clock = ManualClock()
    async with _open(tmp_path, clock) as mine, _open(tmp_path) as others:
        for name in ("broken", "whole"):
            await others.queue(name).set_policy()
        waiting = [asyncio.create_task(mine.queue(name).claim(wait=None)) for name in ("broken", "whole")]
        await _until(lambda: QueueRef("default", "whole") in _watch_of(mine)._watches)
        await _until(lambda: QueueRef("default", "broken") in _watch_of(mine).polled)
        assert _watch_of(mine).polled == {QueueRef("default", "broken")}
        for name in ("broken", "whole"):
            await others.queue(name).enqueue(name)
        async with asyncio.timeout(_BROKEN_AFTER_S):
            assert [m.json() for m in await waiting[1]] == ["whole"]
            assert not waiting[0].done()
            clock.advance(_POLL_MS)
            assert [m.json() for m in await waiting[0]] == ["broken"]
    assert "queue_not_watched queue=default/broken" in caplog.text


@pytest.mark.spec("6.3")
async def test_on_a_network_file_system_every_queue_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "file_system_type", lambda path: "nfs4")
    clock = ManualClock()
    async with _open(tmp_path, clock) as mine, _open(tmp_path) as others:
        await others.queue("q").enqueue("first")
        [message] = await mine.queue("q").claim()
        await message.ack()
        waiting = asyncio.create_task(mine.queue("q").claim(wait=None))
        await _until(lambda: _watch_of(mine).polled)
        assert not _watch_of(mine)._watches
        await others.queue("q").enqueue("second")
        assert not waiting.done()
        clock.advance(_POLL_MS)
        async with asyncio.timeout(_BROKEN_AFTER_S):
            [message] = await waiting
    assert "nfs4" in caplog.text


def test_the_kind_of_a_file_system_is_known(tmp_path: Path) -> None:
    kind = file_system_type(tmp_path / "not" / "there" / "yet")
    assert kind
    assert not is_remote(kind)


@pytest.mark.parametrize(
    ("kind", "remote"),
    [
        *(
            (kind, True)
            for kind in ("nfs", "nfs4", "cifs", "9p", "ceph", "virtiofs", "fuse", "fuse.sshfs", "fuse.s3fs")
        ),
        *((kind, False) for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk")),
    ],
)
def test_file_systems_that_other_machines_write_into_are_distinguished_from_local_ones(kind: str, remote: bool) -> None:
    assert is_remote(kind) is remote
