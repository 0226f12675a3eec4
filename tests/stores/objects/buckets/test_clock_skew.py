"""A process whose clock differs from the bucket's time takes no leases, and claims again once the clock is right."""

import logging
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.clock import Clock, SystemClock
from holdfast.dice import SystemDice
from holdfast.model.errors import StoreUnavailable
from holdfast.server.embedded import Embedded, open_on_loop
from holdfast.stores.objects import ObjectStore, make_bucket
from holdfast.stores.objects.buckets.bucket import Bucket
from holdfast.stores.objects.buckets.clock_skew import provable_ms
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.objects.components import ObjectParts
from holdfast.testing import ManualClock
from tests.stores.objects.emulators import Emulator

WEEK_MS = 7 * 86_400_000
HOUR_MS = 3_600_000


class OffClock(SystemClock):
    """The clock of a machine that is set wrong: its wall shows the same wrong time."""

    def __init__(self, off_ms: int) -> None:
        super().__init__()
        self.off_ms = off_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.off_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.off_ms

    def resync(self) -> None:
        raise AssertionError("this wall is wrong as well")


class LateClock(SystemClock):
    """The clock of a process that started while its machine's clock was behind, and was corrected since."""

    def __init__(self, behind_ms: int) -> None:
        super().__init__()
        self._origin_ns -= behind_ms * 1_000_000


def _open(bucket: Bucket, clock: Clock, **options: Any) -> AsyncHoldfast:
    store = ObjectStore(bucket, SystemDice(), journal_retention_ms=WEEK_MS, watches=False, **options)
    return open_on_loop("", {}, clock=clock, store=store)


def _parts(hf: AsyncHoldfast) -> ObjectParts:
    transport = hf._transport
    assert isinstance(transport, Embedded)
    store = transport.core.store
    assert isinstance(store, ObjectStore)
    return store._opened


async def _measured_ms(hf: AsyncHoldfast) -> int:
    """Renew the node number, which measures the clock, and return the skew."""
    await _parts(hf).nodes.renew_once()
    return _parts(hf).skew.skew_ms


@pytest.mark.spec("2.14", "6.2")
@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("off_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "behind"])
async def test_a_process_whose_clock_is_off_takes_no_lease_and_claims_again_once_it_is_right(
    kind: str, off_ms: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def bucket() -> Bucket:
        return DiskBucket(tmp_path, syncs=False) if kind == "disk" else shared

    shared, clock = MemoryBucket(), OffClock(off_ms)
    caplog.set_level(logging.INFO, "holdfast")
    async with _open(bucket(), SystemClock()) as right, _open(bucket(), clock) as off:
        await right.queue("q").enqueue("held")
        [message] = await right.queue("q").claim(lease=600)
        with pytest.raises(StoreUnavailable, match="clock_skew"):
            await off.queue("q").claim()
        await right.queue("other").enqueue("free")
        with pytest.raises(StoreUnavailable, match="ahead of" if off_ms > 0 else "behind"):
            await off.queue("other").claim()
        # Its sweep ends no lease either; what it held or enqueues is not affected.
        await off.queue("other").enqueue("from there")
        assert (await right.queue("q").stats()).in_flight == 1
        assert abs(await _measured_ms(off)) > HOUR_MS - 60_000
        clock.off_ms = 0
        assert await _measured_ms(off) == 0
        assert len(await off.queue("other").claim(limit=10)) >= 1
        await message.ack()
    said = [record for record in caplog.records if record.getMessage().startswith("clock_")]
    assert [record.getMessage().split()[0] for record in said] == ["clock_skewed", "clock_right"]
    assert abs(said[0].__dict__["skew_ms"]) > HOUR_MS - 60_000
    assert said[0].__dict__["limit_ms"] == 1_000


async def test_a_process_that_started_with_a_wrong_clock_goes_by_the_wall_once_that_is_right(tmp_path: Path) -> None:
    clock = LateClock(HOUR_MS)
    async with _open(DiskBucket(tmp_path, syncs=False), clock) as hf:
        await hf.queue("q").enqueue("a")
        assert await _measured_ms(hf) == 0
        assert await hf.queue("q").claim()
    assert abs(clock.wall_ms() - clock.now_ms()) < 60_000


@pytest.mark.spec("6.2")
async def test_a_skew_within_the_setting_is_warned_of_and_claims_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with _open(DiskBucket(tmp_path, syncs=False), OffClock(HOUR_MS), clock_skew_ms=2 * HOUR_MS - 60_000) as hf:
        await hf.queue("q").enqueue("a")
        assert await hf.queue("q").claim()
    assert caplog.text.count("clock_skewed") == 1


async def test_the_clock_of_a_test_is_compared_only_if_the_test_asks_for_it(tmp_path: Path) -> None:
    async with _open(DiskBucket(tmp_path / "a", syncs=False), ManualClock()) as hf:
        await hf.queue("q").enqueue("a")
        assert await hf.queue("q").claim()
    async with _open(DiskBucket(tmp_path / "b", syncs=False), ManualClock(), measures_skew=True) as hf:
        with pytest.raises(StoreUnavailable, match="clock_skew"):
            await hf.queue("q").claim()


@pytest.mark.parametrize("cloud", ["s3", "azure"])
async def test_a_cloud_returns_the_time_at_which_an_object_was_written(
    cloud: str, request: pytest.FixtureRequest
) -> None:
    emulator: Emulator = request.getfixturevalue(cloud)
    bucket, clock = make_bucket(emulator.new_url()), SystemClock()
    before_ms = clock.now_ms()
    await bucket.put("probe", b"x")
    after_ms = clock.now_ms()
    written_at = await bucket.written_at("probe")
    assert provable_ms(before_ms, after_ms, written_at, bucket.time_resolution_ms) == 0
    assert (
        provable_ms(before_ms + HOUR_MS, after_ms + HOUR_MS, written_at, bucket.time_resolution_ms) > HOUR_MS - 60_000
    )


@pytest.mark.parametrize(
    ("before", "after", "written", "step", "skew"),
    [
        (1_000, 1_005, 1_003, 0, 0),
        (1_000, 9_000, 5_000, 0, 0),  # a slow call proves nothing
        (5_000, 5_010, 1_000, 1_000, 2_999),
        (1_900, 1_999, 1_000, 1_000, 0),  # the bucket counts in seconds
        (1_000, 1_010, 5_000, 1_000, -3_989),
    ],
)
def test_only_as_much_skew_is_taken_as_the_times_around_a_write_prove(
    before: int, after: int, written: int, step: int, skew: int
) -> None:
    assert provable_ms(before, after, written, step) == skew


def test_a_setting_of_the_public_surface_says_how_much_is_allowed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path.as_uri(), clock_skew="5s") as hf:
        hf.queue("q").enqueue("a")
        assert hf.queue("q").claim()
