"""Stores count each transition once, and report their figures."""

from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.server.embedded import Embedded
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.testing import EmbeddedSubject
from holdfast.testing.laws.operating.journal import events_of
from holdfast.wire.requests import MoveRequest

WEEK_MS = 7 * 86_400_000
A, B = QueueRef("acme", "a"), QueueRef("acme", "b")


@pytest.fixture(params=["memory", "os", "fsync"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> EmbeddedSubject:
    if request.param == "memory":
        return EmbeddedSubject(lambda dice: MemoryStore(dice, WEEK_MS))
    return EmbeddedSubject(
        lambda dice: RocksStore(
            tmp_path / "store", dice, durability=Durability(request.param), journal_retention_ms=WEEK_MS
        )
    )


def store_of(hf: AsyncHoldfast) -> Store:
    return cast(Embedded, hf._transport).core.store


async def do_everything(subject: EmbeddedSubject, hf: AsyncHoldfast) -> None:
    """Cause every event in every possible way: by callers, claims, sweeps and operators."""
    a, b = hf.queue("a", tenant="acme"), hf.queue("b", tenant="acme")
    await a.set_policy(max_retries=1, backoff_base_ms=1, backoff_cap_ms=1)
    await a.enqueue([b""] * 10)
    await a.enqueue(b"", key="k")
    await a.enqueue(b"", key="k")  # a duplicate: no transition
    acked, nacked, released, extended, lapsed, deferred = await a.claim(limit=6, lease=5)
    await a.ack([acked])
    assert not (await a.ack([acked]))[0].ok  # stale: no transition
    await a.nack([nacked], "no", delay=100)
    await a.release([released])
    await a.extend([extended], 60)
    await a.nack([deferred], "later", delay=100, defer=True)
    assert lapsed
    subject.clock.advance(5_000)
    await subject.sweep(hf)  # returns `lapsed`
    again = await a.claim(limit=1, lease=1)
    subject.clock.advance(1_000)
    assert again
    await a.claim(limit=2, lease=1)  # the claim itself returns `again`
    subject.clock.advance(1_000)
    await subject.sweep(hf)
    await a.nack(await a.claim(limit=1, lease=9), "out", final=True)
    await a.enqueue([b""] * 3, ttl=1)
    subject.clock.advance(1_000)
    await subject.sweep(hf)  # three ends by TTL
    await a.redrive()
    await a.remove((await a.peek(1))[0].id)
    await cast(Embedded, hf._transport).core.admin.move(A, MoveRequest(to=B))
    await b.purge()


async def test_every_transition_is_counted_once_for_its_queue_and_event(subject: EmbeddedSubject) -> None:
    async with subject.open() as hf:
        await do_everything(subject, hf)
        tallies = await store_of(hf).take_tallies()
        told: dict[QueueRef, Counter[str]] = {A: Counter(), B: Counter()}
        for event in await events_of(hf):
            told[QueueRef(event.tenant, event.queue)][event.event] += 1
        assert {ref: Counter(counts) for ref, counts in tallies.items()} == told
        assert set(told[A]) | set(told[B]) == set(Event)  # all events occur
        assert told[A]["enqueued"] == 14
        assert told[A]["succeeded"] == told[A]["extended"] == told[A]["retried"] == 1
        assert told[A]["released"] == 2


async def test_expiries_found_by_a_sweep_are_counted(subject: EmbeddedSubject) -> None:
    async with subject.open() as hf:
        q = hf.queue("a", tenant="acme")
        await q.enqueue([b""] * 7, max_retries=5)
        await q.claim(limit=7, lease=1)
        subject.clock.advance(1_000)
        await subject.sweep(hf)
        assert await store_of(hf).take_tallies() == {A: {"enqueued": 7, "claimed": 7, "expired": 7}}


async def test_a_count_is_reported_once(subject: EmbeddedSubject) -> None:
    async with subject.open() as hf:
        q, store = hf.queue("a", tenant="acme"), store_of(hf)
        await q.enqueue([b""] * 2)
        assert await store.take_tallies() == {A: {"enqueued": 2}}
        assert await store.take_tallies() == {}
        await q.claim()
        assert await store.take_tallies() == {A: {"claimed": 1}}


async def test_a_queue_made_again_under_its_name_is_counted_with_the_old_one(subject: EmbeddedSubject) -> None:
    async with subject.open() as hf:
        q = hf.queue("a", tenant="acme")
        await q.enqueue(b"")
        await q.delete()
        await subject.sweep(hf)
        await q.enqueue([b""] * 2)
        assert await store_of(hf).take_tallies() == {A: {"enqueued": 3, "removed": 1}}


async def test_a_refused_call_counts_nothing(subject: EmbeddedSubject) -> None:
    async with subject.open(max_payload=3) as hf:
        with pytest.raises(Exception, match="bytes"):
            await hf.queue("a", tenant="acme").enqueue([b"1", b"1234"])
        assert await store_of(hf).take_tallies() == {}


async def test_a_store_reports_whether_it_is_up(subject: EmbeddedSubject) -> None:
    async with subject.open() as hf:
        store = store_of(hf)
        assert (await store.figures()).is_up
    assert not (await store.figures()).is_up
    assert await store.take_tallies() == {} or not store.capabilities.is_durable


async def test_the_embedded_store_reports_its_families_writes_and_syncs(tmp_path: Path) -> None:
    subject = EmbeddedSubject(lambda dice: RocksStore(tmp_path / "s", dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        before = await store_of(hf).figures()
        for _ in range(3):
            await hf.queue("a").enqueue([b"x" * 100] * 100)
        figures = await store_of(hf).figures()
        assert set(figures.families) == {"m", "vi", "li", "le", "jr", "ix", "default"}
        assert figures.unwritten_bytes is not None
        assert figures.unwritten_bytes > 30_000
        assert figures.free_bytes is not None
        assert figures.free_bytes > 0
        assert figures.writes is not None
        assert before.writes is not None
        assert figures.writes - before.writes == 3
        assert figures.syncs is not None
        assert sum(figures.syncs.counts) == 3
        assert figures.syncs.sum > 0


async def test_a_store_that_stopped_still_reports_figures_and_earlier_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = EmbeddedSubject(lambda dice: RocksStore(tmp_path / "s", dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        store = store_of(hf)
        await hf.queue("a", tenant="acme").enqueue(b"")

        def fail() -> None:
            raise OSError("no space left")

        monkeypatch.setattr(cast(RocksStore, store)._engine.database, "write", fail)
        with pytest.raises(StoreUnavailable):
            await hf.queue("a", tenant="acme").enqueue(b"")
        figures = await store.figures()
        assert not figures.is_up
        assert figures.free_bytes
        assert (await store.take_tallies())[A][Event.ENQUEUED] >= 1
