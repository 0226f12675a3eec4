"""Admission as the services use it: calls that are admitted, wait or are refused, and the records of the observer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.dice import SeededDice
from holdfast.model.errors import HoldfastError, OverQuota, RateLimited, StoreUnavailable
from holdfast.model.limits import Charge
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.runtime import LoopRuntime
from holdfast.server.compose import Core
from holdfast.server.settings import parse_settings
from holdfast.service.limits import gate as gates
from holdfast.service.limits.admission import Admission
from holdfast.service.limits.buckets import MemoryBuckets
from holdfast.service.queues import QueueService
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.testing import HeldCalls, ManualClock, with_faults
from holdfast.wire.requests import ConfigureRequest

WEEK_MS = 7 * 86_400_000
REF = QueueRef("acme", "jobs")


class Notes:
    """An observer that records all decisions."""

    def __init__(self) -> None:
        self.decisions: list[tuple[QueueRef, str, str]] = []
        self.waits: list[tuple[QueueRef, str, int]] = []

    def decided(self, ref: QueueRef, kind: str, outcome: str) -> None:
        self.decisions.append((ref, kind, outcome))

    def waited(self, ref: QueueRef, kind: str, ms: int) -> None:
        self.waits.append((ref, kind, ms))

    @property
    def outcomes(self) -> list[str]:
        return [outcome for _, _, outcome in self.decisions]


class Bench:
    """A core whose admission has an observer and a small gate."""

    def __init__(self, store: Store, max_in_hand: int = 256) -> None:
        self.clock = ManualClock()
        self.runtime = LoopRuntime(self.clock, self.clock)
        self.core = Core(store, self.runtime, parse_settings({}))
        self.notes = Notes()
        self.buckets = MemoryBuckets()
        directory = self.core._directory
        self.admission = Admission(
            directory, self.runtime, buckets=self.buckets, observer=self.notes, max_in_hand=max_in_hand
        )
        self.messages = QueueService(
            store, self.core.dispatcher, directory, self.admission, self.runtime, max_payload=1 << 20
        )
        self.admin = self.core.admin

    def enqueue(self, ref: QueueRef = REF, number: int = 1, size: int = 1) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.messages.enqueue(ref, [Draft(payload=b"x" * size)] * number))

    def claim(self, ref: QueueRef = REF, limit: int = 1, wait_ms: int | None = 0) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.messages.claim(ref, ClaimRequest(limit=limit), wait_ms))

    async def ready(self, ref: QueueRef = REF) -> int:
        return (await self.core.store.counts(*ref, self.clock.now_ms())).ready

    async def close(self) -> None:
        await self.core.close()
        await self.runtime.aclose()


async def settle_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def opened(store: Store, **options: Any) -> Bench:
    bench = Bench(store, **options)
    await bench.core.open()
    return bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = await opened(MemoryStore(SeededDice(1), WEEK_MS))
    yield made
    await made.close()


class TestWithoutLimits:
    async def test_nothing_is_made_kept_or_told(self, bench: Bench) -> None:
        for number in range(100):
            ref = QueueRef(f"t{number}", "q")
            assert bench.admission.enter_at_once(ref) is bench.admission.gate
            bench.admission.gate.leave()
            await bench.enqueue(ref)
            await bench.claim(ref)
        assert len(bench.buckets) == 0
        assert bench.admission._caps == {}
        assert bench.notes.decisions == bench.notes.waits == []
        assert bench.admission.gate.is_idle

    async def test_what_fails_in_the_store_leaves_the_gate(self, bench: Bench) -> None:
        await bench.core.store.close()
        for _ in range(300):
            with pytest.raises(StoreUnavailable):
                await bench.enqueue()
        assert bench.admission.gate.is_idle

    async def test_other_tenants_limits_do_not_touch_it(self, bench: Bench) -> None:
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"limits": {"write_ops_per_s": 1}}))
        await bench.enqueue()
        for _ in range(50):
            await bench.enqueue(QueueRef("other", "jobs"))
        assert bench.notes.decisions == [(REF, "write", "admitted")]


class TestRates:
    async def test_the_observer_hears_what_was_admitted_and_what_was_not(self, bench: Bench) -> None:
        await bench.admin.set_tenant(
            REF, ConfigureRequest(changes={"limits": {"write_ops_per_s": 2, "read_ops_per_s": 1}})
        )
        await bench.enqueue(number=2)
        with pytest.raises(RateLimited):
            await bench.enqueue()
        await bench.claim()
        with pytest.raises(RateLimited):
            await bench.claim()
        assert bench.notes.decisions == [
            (REF, "write", "admitted"),
            (REF, "write", "limited"),
            (REF, "read", "admitted"),
            (REF, "read", "limited"),
        ]
        assert bench.notes.waits == []

    async def test_concurrent_calls_share_one_bucket(self, bench: Bench) -> None:
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"limits": {"write_ops_per_s": 25}}))
        refs = [QueueRef("acme", f"q{number % 7}") for number in range(100)]
        results = await asyncio.gather(*(bench.enqueue(ref) for ref in refs), return_exceptions=True)
        assert sum(not isinstance(each, Exception) for each in results) == 25

    async def test_a_failed_enqueue_gives_its_tokens_back_and_a_cancelled_one_does_not(self) -> None:
        loop = asyncio.get_running_loop()
        calls = HeldCalls(loop.create_future, before=set(), after={"enqueue"})
        bench = await opened(with_faults(MemoryStore(SeededDice(1), WEEK_MS), calls))
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"limits": {"write_ops_per_s": 3}}))
        failing = bench.enqueue(number=2)
        await settle_loop()
        [(_, ticket)] = calls.held
        ticket.set_exception(StoreUnavailable("lost", outcome="unknown"))
        with pytest.raises(StoreUnavailable):
            await failing
        calls.held.clear()
        # Two of the three tokens were returned.
        gone = bench.enqueue(number=3)
        await settle_loop()
        gone.cancel()
        await settle_loop()
        with pytest.raises(RateLimited):
            await bench.enqueue()
        await bench.close()

    async def test_a_claim_that_fails_costs_nothing(self, bench: Bench) -> None:
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"limits": {"read_ops_per_s": 1}}))
        await bench.core.store.close()
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await bench.claim()

    async def test_a_subscriber_over_its_rate_is_made_to_wait_and_not_sent_away(self, bench: Bench) -> None:
        await bench.admin.set_policy(REF, ConfigureRequest(changes={"limits": {"read_ops_per_s": 2}}))
        await bench.enqueue(number=10)
        stream = await bench.messages.subscribe(REF, ClaimRequest(limit=4), 10)
        assert len(await stream.next(None)) == 4
        second = asyncio.create_task(stream.next(None))
        await settle_loop()
        bench.clock.advance(1_499)
        await settle_loop()
        assert not second.done()
        bench.clock.advance(1)
        assert len(await second) == 4
        third = asyncio.create_task(stream.next(1_000))
        await settle_loop()
        bench.clock.advance(999)
        await settle_loop()
        assert not third.done()
        bench.clock.advance(1)
        assert await third == []

    async def test_a_verdict_asks_no_bucket(self, bench: Bench) -> None:
        await bench.enqueue()
        [held] = await bench.claim()
        await bench.admin.set_tenant(
            REF, ConfigureRequest(changes={"limits": {"read_ops_per_s": 0, "write_ops_per_s": 0}})
        )
        [result] = await bench.messages.settle(REF, [Verdict(settle=Settle.ACK, receipt=held.receipt)])
        assert result.ok
        assert bench.notes.decisions == []

    async def test_buckets_of_idle_queues_are_dropped(self) -> None:
        buckets = MemoryBuckets()
        for number in range(50_000):
            charge = Charge(QueueRef("acme", f"q{number}"), "write_ops_per_s", 10.0, 10.0, 1)
            assert await buckets.take([charge], number) is None
            assert len(buckets) <= 1_024 + 1
        # Buckets in use are kept, whatever their number.
        busy = [Charge(QueueRef("acme", f"b{number}"), "write_ops_per_s", 0.001, 1.0, 1) for number in range(5_000)]
        for charge in busy:
            assert await buckets.take([charge], 60_000) is None
        for charge in busy:
            assert await buckets.take([charge], 60_000) is not None

    async def test_clearing_out_loses_no_charge_of_the_call_that_does_it(self) -> None:
        buckets = MemoryBuckets()
        tenant = Charge("acme", "write_ops_per_s", 1_000.0, 10.0, 1)
        for number in range(3_000):
            queue = Charge(QueueRef("acme", f"q{number}"), "write_ops_per_s", 0.001, 1.0, 1)
            refused = await buckets.take([tenant, queue], number // 10)
            # Bursts of ten and a thousand per second, also while other buckets are removed.
            assert (refused is None) == (number < 10 or number % 10 == 0)


class TestTheGate:
    @pytest.fixture
    async def held(self) -> AsyncIterator[tuple[Bench, HeldCalls]]:
        loop = asyncio.get_running_loop()
        calls = HeldCalls(loop.create_future, before={"enqueue"}, after=set())
        made = await opened(with_faults(MemoryStore(SeededDice(1), WEEK_MS), calls), max_in_hand=4)
        yield made, calls
        while calls.held:
            calls.let_go()
            await settle_loop()
        await made.close()

    async def test_no_more_enqueues_than_its_size_are_in_the_store_and_all_end(
        self, held: tuple[Bench, HeldCalls]
    ) -> None:
        bench, calls = held
        tasks = [bench.enqueue() for _ in range(30)]
        most = 0
        while not all(task.done() for task in tasks):
            await settle_loop()
            most = max(most, len(calls.held))
            calls.let_go()
        assert most == 4
        assert await bench.ready() == 30
        assert bench.notes.outcomes == ["waited"] * 26
        assert bench.admission.gate.is_idle

    async def test_claims_and_verdicts_do_not_wait_at_it(self, held: tuple[Bench, HeldCalls]) -> None:
        bench, _ = held
        [bench.enqueue() for _ in range(30)]
        await settle_loop()
        assert await bench.claim() == []

    @pytest.mark.spec("8.8")
    async def test_a_quiet_tenant_passes_a_flood(self, held: tuple[Bench, HeldCalls]) -> None:
        bench, calls = held
        flood = [bench.enqueue(QueueRef("noisy", "q"), number=10) for _ in range(200)]
        await settle_loop()
        quiet = [bench.enqueue(QueueRef("quiet", "q")) for _ in range(4)]
        rounds = 0
        while not all(task.done() for task in quiet):
            await settle_loop()
            calls.let_go()
            rounds += 1
        assert rounds <= 4
        assert sum(task.done() for task in flood) <= 4 * 4
        while not all(task.done() for task in flood):
            await settle_loop()
            calls.let_go()

    async def test_who_waits_too_long_is_refused_gets_its_tokens_back_and_is_told_of(
        self, held: tuple[Bench, HeldCalls]
    ) -> None:
        bench, calls = held
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"limits": {"write_ops_per_s": 1, "burst_s": 1}}))
        [bench.enqueue(QueueRef("noisy", "q")) for _ in range(4)]
        await settle_loop()
        late = bench.enqueue()
        await settle_loop()
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"limits": {"write_ops_per_s": 0.0001}}))
        bench.clock.advance(5_000)
        with pytest.raises(RateLimited) as refused:
            await late
        assert refused.value.facts["of"] == "server"
        assert bench.notes.decisions == [(REF, "write", "refused")]
        assert bench.notes.waits == [(REF, "write", 5_000)]
        calls.let_go()
        await settle_loop()
        again = bench.enqueue()
        await settle_loop()
        calls.let_go()
        await again

    async def test_who_leaves_while_it_waits_takes_no_place_and_gets_its_tokens_back(
        self, held: tuple[Bench, HeldCalls]
    ) -> None:
        bench, calls = held
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"limits": {"write_ops_per_s": 1}}))
        [bench.enqueue(QueueRef("noisy", "q")) for _ in range(4)]
        await settle_loop()
        for _ in range(10):
            gone = bench.enqueue()
            await settle_loop()
            gone.cancel()
            await settle_loop()
            assert gone.cancelled()
        calls.let_go()
        await settle_loop()
        assert bench.admission.gate.is_idle
        assert bench.notes.outcomes == []

    async def test_a_full_line_refuses_at_once_and_only_its_own_tenant(
        self, held: tuple[Bench, HeldCalls], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gates, "MAX_WAITING_OF_TENANT", 5)
        bench, calls = held
        flood = [bench.enqueue(QueueRef("noisy", "q")) for _ in range(9)]
        await settle_loop()
        with pytest.raises(RateLimited):
            await bench.enqueue(QueueRef("noisy", "q"))
        quiet = bench.enqueue(QueueRef("quiet", "q"))
        while not all(task.done() for task in [*flood, quiet]):
            await settle_loop()
            calls.let_go()
        await quiet


class TestCaps:
    async def test_the_observer_hears_of_waits_at_a_cap(self, bench: Bench) -> None:
        await bench.admin.set_policy(REF, ConfigureRequest(changes={"max_claims": 1}))
        first = bench.claim(wait_ms=3_000)
        await settle_loop()
        second, third = bench.claim(wait_ms=None), bench.claim(wait_ms=1_000)
        await settle_loop()
        bench.clock.advance(1_000)
        with pytest.raises(RateLimited):
            await third
        bench.clock.advance(2_000)
        assert await first == []
        await bench.enqueue()
        assert len(await second) == 1
        assert bench.notes.outcomes == ["admitted", "refused", "waited"]
        assert bench.notes.waits == [(REF, "read", 1_000), (REF, "read", 3_000)]

    async def test_what_capped_queues_need_goes_with_their_last_call(self, bench: Bench) -> None:
        for number in range(20):
            ref = QueueRef("acme", f"q{number}")
            await bench.admin.set_policy(ref, ConfigureRequest(changes={"max_claims": 1, "max_enqueues": 1}))
            await bench.enqueue(ref)
            claims = [bench.claim(ref, wait_ms=1_000) for _ in range(3)]
            await settle_loop()
            for task in claims:
                task.cancel()
            await settle_loop()
        assert bench.admission._caps == {}

    async def test_a_cap_that_is_lifted_holds_nobody_back(self, bench: Bench) -> None:
        await bench.admin.set_policy(REF, ConfigureRequest(changes={"max_claims": 1}))
        first = bench.claim(wait_ms=None)
        await settle_loop()
        over = bench.claim(wait_ms=None)
        await settle_loop()
        await bench.admin.set_policy(REF, ConfigureRequest(changes={"max_claims": None}))
        free = bench.claim(wait_ms=None)
        await settle_loop()
        await bench.enqueue(number=3)
        assert [len(await task) for task in (first, free, over)] == [1, 1, 1]
        assert bench.admission._caps == {}

    async def test_claims_enter_in_the_order_they_came(self, bench: Bench) -> None:
        await bench.admin.set_policy(REF, ConfigureRequest(changes={"max_claims": 1}))
        tasks = [bench.claim(wait_ms=None) for _ in range(5)]
        await settle_loop()
        for position in range(5):
            await bench.enqueue()
            await settle_loop()
            assert [task.done() for task in tasks] == [True] * (position + 1) + [False] * (4 - position)


class TestTheDirectory:
    async def test_limits_and_weights_hold_after_a_restart(self, tmp_path: Path) -> None:
        def store() -> RocksStore:
            return RocksStore(tmp_path / "store", SeededDice(1), durability=Durability.OS, journal_retention_ms=WEEK_MS)

        capped = QueueRef("other", "capped")
        bench = await opened(store())
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"weight": 7, "limits": {"write_ops_per_s": 1}}))
        await bench.admin.set_policy(capped, ConfigureRequest(changes={"max_claims": 3}))
        await bench.admin.set_policy(QueueRef("other", "plain"), ConfigureRequest(changes={"max_retries": 3}))
        await bench.close()

        bench = await opened(store())
        directory = bench.core._directory
        assert directory.weight_of("acme") == 7
        assert directory.weight_of("other") == 1
        assert list(directory.tenant_limits) == ["acme"]
        assert list(directory.queue_limits) == [capped]
        await bench.enqueue()
        with pytest.raises(RateLimited):
            await bench.enqueue()
        await bench.close()

    async def test_what_has_the_defaults_again_is_forgotten(self, bench: Bench) -> None:
        directory = bench.core._directory
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"weight": 7, "limits": {"write_ops_per_s": 1}}))
        await bench.admin.set_policy(REF, ConfigureRequest(changes={"max_claims": 3}))
        await bench.admin.set_tenant(REF, ConfigureRequest(changes={"weight": 1, "limits": {"write_ops_per_s": None}}))
        await bench.admin.set_policy(REF, ConfigureRequest(changes={"max_claims": None}))
        assert directory._weights == directory.tenant_limits == directory.queue_limits == {}


def test_limits_hold_in_a_program_without_a_loop() -> None:
    clock = ManualClock()
    with holdfast.open("memory://", clock=clock) as hf:
        q = hf.queue("q")
        q.set_policy(limits={"write_ops_per_s": 2, "read_ops_per_s": 2}, max_claims=1, max_enqueues=1)
        q.enqueue([b"", b""])
        with pytest.raises(RateLimited) as refused:
            q.enqueue(b"")
        assert refused.value.retry_after_ms == 500
        clock.advance(500)
        q.enqueue(b"")
        assert len(q.claim(3)) == 3
        with pytest.raises(RateLimited):
            q.claim(wait=10)


@pytest.mark.parametrize("kind", ["memory", "rocks os", "rocks fsync"])
@pytest.mark.parametrize("quota", ["max_messages", "max_bytes"])
async def test_a_quota_is_met_exactly_by_many_enqueues_at_once(tmp_path: Path, kind: str, quota: str) -> None:
    durability = Durability.FSYNC if kind == "rocks fsync" else Durability.OS
    store: Store = (
        MemoryStore(SeededDice(1), WEEK_MS)
        if kind == "memory"
        else RocksStore(tmp_path / "store", SeededDice(1), durability=durability, journal_retention_ms=WEEK_MS)
    )
    bench = await opened(store)
    limit = 100 if quota == "max_messages" else 1_000
    await bench.admin.set_tenant(REF, ConfigureRequest(changes={"quotas": {quota: limit}}))
    refs = [QueueRef("acme", f"q{number % 5}") for number in range(400)]
    tasks = [bench.enqueue(ref, number=1 + number % 3, size=10) for number, ref in enumerate(refs)]
    tasks += [bench.enqueue(refs[0], size=10) for _ in range(100)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    stored = sum(len(each) for each in results if not isinstance(each, BaseException))
    failures = [each for each in results if isinstance(each, BaseException)]
    assert all(isinstance(each, OverQuota) for each in failures)
    assert isinstance(failures[0], HoldfastError)
    counts = await store.counts("acme", None, bench.clock.now_ms())
    # Single messages come last, so the quota is used up.
    assert counts.ready == stored == 100
    assert counts.bytes == 1_000
    await bench.close()
