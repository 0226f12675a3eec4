"""An object store on a full disk: enqueues are refused, verdicts succeed, and it recovers by itself."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.blocking import Holdfast, Queue
from holdfast.dice import SeededDice
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import parse_ref
from holdfast.server.embedded import open_blocking
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.bucket import ObjectMissing, Unanswered
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.objects.verify.store import verify
from holdfast.testing import ManualClock
from tests.crash.rocks import core_of, sweep
from tests.small_disk import mounted

WEEK_MS = 7 * 86_400_000
RESERVE = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 8 << 20) as place:
        yield place


def open_store(path: Path, clock: ManualClock, low_disk_bytes: int = RESERVE, *, syncs: bool = True) -> Holdfast:
    store = ObjectStore(
        DiskBucket(path, syncs=syncs),
        SeededDice(0),
        journal_retention_ms=WEEK_MS,
        watches=False,
        low_disk_bytes=low_disk_bytes,
    )
    return open_blocking("", {"max_payload": 64 << 20}, clock=clock, store=store)


def fill(queue: Queue, clock: ManualClock) -> list[bytes]:
    """Enqueue until that is refused; return the payloads that were accepted."""
    accepted: list[bytes] = []
    for number in range(1_000):
        clock.advance(300)  # the free space is looked at every 200 ms
        payload = b"%04d" % number * 10_000
        try:
            queue.enqueue(payload)
        except StoreUnavailable:
            return accepted
        accepted.append(payload)
    raise AssertionError("the disk never filled up")


def test_a_full_disk_refuses_enqueues_while_claims_acks_releases_and_sweeps_continue(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with open_store(small_disk / "store", clock) as hf:
        queue = hf.queue("mail")
        accepted = fill(queue, clock)
        assert len(accepted) > 10
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="enqueues are refused"):
                queue.enqueue(b"refused")
        figures = hf._driver.run(core_of(hf).store.figures())
        assert "enqueues are refused" in (figures.refusal or "")
        assert (figures.refusals or 0) >= 4
        with pytest.raises(StoreUnavailable, match="enqueues are refused"):
            hf._driver.run(core_of(hf).admin.check_store())

        held = queue.claim(6, lease="1m")
        assert [each.payload for each in held] == accepted[:6]
        assert all(result.ok for result in queue.ack(held[:2]))
        held[2].release()
        held[3].nack(delay="0s")
        held[4].extend("2m")
        clock.advance(130_000)
        assert sweep(hf) > 0
        claimed = queue.claim(100, lease="1h")
        assert sorted(each.payload for each in claimed) == accepted[2:]
        assert all(result.ok for result in queue.ack(claimed))
        sweep(hf)

        clock.advance(1_000)
        queue.enqueue(b"there is room again")
        assert [each.payload for each in queue.claim(10)] == [b"there is room again"]
    names = [record.getMessage() for record in caplog.records]
    assert names.count("enqueues_refused") == 1
    assert names.count("enqueues_accepted_again") == 1
    [refused] = [record for record in caplog.records if record.getMessage() == "enqueues_refused"]
    facts: Any = refused
    assert (facts.path, facts.free_bytes < RESERVE) == (str(small_disk / "store"), True)


@pytest.mark.parametrize("syncs", [True, False])
def test_a_disk_that_others_filled_to_the_last_byte_loses_and_tears_nothing(small_disk: Path, syncs: bool) -> None:
    clock, other = ManualClock(), small_disk / "other"
    with open_store(small_disk / "store", clock, 0, syncs=syncs) as hf:
        queue = hf.queue("mail")
        accepted = [b"%04d" % number * 1_000 for number in range(5)]
        queue.enqueue(accepted)
        with other.open("wb", buffering=0) as file:
            with suppress(OSError):
                while file.write(bytes(10_000)):
                    pass
            file.truncate(file.tell() - 6_000)  # room for a part of the next payload
        for _ in range(3):
            with pytest.raises(HoldfastError):
                queue.enqueue(b"x" * 50_000)
        other.unlink()
        clock.advance(60_000)
        sweep(hf)
        queue.enqueue(b"after")
        found = [each.payload for each in queue.claim(100)]
        assert [each for each in found if each != b"x" * 50_000] == [*accepted, b"after"]
    assert not verify((small_disk / "store").as_uri()).violations


def test_a_payload_that_comes_bit_by_bit_is_refused_when_the_disk_runs_full(small_disk: Path) -> None:
    clock = ManualClock()
    with open_store(small_disk / "store", clock) as hf:
        queue, messages, run = hf.queue("mail"), core_of(hf).messages, hf._driver.run
        queue.enqueue(b"small")
        upload = run(messages.upload(parse_ref("default", "mail"), Draft(payload=b"")))

        def write_all() -> None:
            for _ in range(32):
                run(upload.write(bytes(1 << 20)))

        with pytest.raises(StoreUnavailable, match="enqueues are refused"):
            write_all()
        upload.close()
        assert shutil.disk_usage(small_disk).free >= RESERVE - (2 << 20)
        assert [each.payload for each in queue.claim(10)] == [b"small"]


async def test_an_object_that_the_disk_has_too_little_room_for_is_not_written_in_part(small_disk: Path) -> None:
    """One write may take a part of it, and say so only by its length."""
    bucket = DiskBucket(small_disk / "store")
    await bucket.open()
    (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free - 40_960))
    with pytest.raises(Unanswered, match="No space left"):
        await bucket.put("a/b", bytes(100_000))
    with pytest.raises(ObjectMissing):
        await bucket.read("a/b")
    await bucket.close()
