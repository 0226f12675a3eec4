"""PostgreSQL's shortcuts do what the shared logic does: both run the same calls, and the memory store a third time."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from holdfast.dice import SeededDice
from holdfast.model.answers import Delivery, Enqueued, Result
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy
from holdfast.model.requests import EVERYTHING, ClaimRequest, Settle, Verdict
from holdfast.runtime import LoopRuntime
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.postgres.transactions.shortcuts import SHORTCUTS
from holdfast.stores.values import Claims, QueueChange
from holdfast.testing import ManualClock
from tests.postgres.server import PostgresServer
from tests.properties.test_memory_machine import COMMON

_WEEK_MS = 7 * 86_400_000
# A history takes about 140 ms on a busy machine: all of them about 15 s.
_SETTINGS = settings(COMMON, max_examples=100, phases=(Phase.explicit, Phase.reuse, Phase.generate))


class FairDice(SeededDice):
    """Two ways to the same end take different numbers of tokens; their backoffs must not differ for that."""

    def roll(self) -> float:
        return 0.5


class Deaf:
    def ready(self, ref: QueueRef, at_ms: int) -> None: ...
    def deadline(self, at_ms: int) -> None: ...
    def scheduled(self, at_ms: int) -> None: ...
    def is_waited_for(self, ref: QueueRef) -> bool:
        return False


# --- Calls -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enqueue:
    drafts: list[Draft]


@dataclass(frozen=True)
class Claim:
    asks: list[ClaimRequest]


@dataclass(frozen=True)
class ClaimReserved:
    """A claim of messages that were reserved just before; for a store that reserves none, an ordinary one."""

    asks: list[ClaimRequest]


@dataclass(frozen=True)
class Settlement:
    """Verdicts on deliveries, counted from the newest one back; some of them were settled before, or have expired."""

    verdicts: list[tuple[Settle, int]]


@dataclass(frozen=True)
class Pause:
    is_paused: bool


@dataclass(frozen=True)
class Sweep:
    pass


@dataclass(frozen=True)
class Wait:
    ms: int


Call = Enqueue | Claim | ClaimReserved | Settlement | Pause | Sweep | Wait

_drafts = st.builds(
    Draft,
    payload=st.sampled_from([b"", b"payload"]),
    headers=st.sampled_from([{}, {"name": "value"}]),
    priority=st.sampled_from([0, 4, 9]),
    delay_ms=st.sampled_from([0, 0, 0, 500]),
    ttl_ms=st.sampled_from([None, None, 400, 2_000]),
    correlation_id=st.sampled_from([None, "order-1"]),
    max_retries=st.sampled_from([None, 0, 1]),
)
_asks = st.lists(
    st.builds(
        ClaimRequest,
        limit=st.integers(1, 3),
        lease_ms=st.sampled_from([None, 300, 3_000]),
        owner=st.sampled_from([None, "worker"]),
        with_state=st.booleans(),
    ),
    min_size=1,
    max_size=2,
)
_acks = st.lists(st.tuples(st.just(Settle.ACK), st.integers(0, 6)), min_size=1, max_size=5)
_verdicts = st.lists(st.tuples(st.sampled_from(list(Settle)), st.integers(0, 6)), min_size=1, max_size=3)
_enqueues = st.builds(Enqueue, st.lists(_drafts, min_size=3, max_size=8))
_call: st.SearchStrategy[Call] = st.one_of(
    _enqueues,
    *[st.builds(Claim, _asks)] * 3,
    *[st.builds(ClaimReserved, _asks)] * 2,
    *[st.builds(Settlement, _acks)] * 3,
    st.builds(Settlement, _verdicts),
    st.builds(Pause, st.booleans()),
    st.just(Sweep()),
    *[st.builds(Wait, st.sampled_from([1, 300, 300, 1_000, 30_000]))] * 3,
)
_calls = st.builds(lambda first, rest: [first, *rest], _enqueues, st.lists(_call, min_size=8, max_size=24))
_policies = st.sampled_from(
    [QueuePolicy(), QueuePolicy(lease_ms=2_000, max_lease_ms=2_500), QueuePolicy(keep_succeeded_ms=1_000)]
)


# --- One store -------------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """One store with a queue. Ids and tokens are its own: messages are told apart by the order they came in."""

    store: Store
    ref: QueueRef
    numbers: dict[int, int] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)

    async def run(self, call: Call, now_ms: int) -> Any:
        """Run the call, and return what it returned as far as it must be the same for all."""
        match call:
            case Enqueue(drafts):
                enqueued = await self.store.enqueue(self.ref, drafts, now_ms, auto_create=True)
                return [self._enqueued(each) for each in enqueued]
            case Claim(asks):
                return self._claimed(await self.store.claim(self.ref, asks, now_ms))
            case ClaimReserved(asks):
                return self._claimed(await self._claim_reserved(asks, now_ms))
            case Settlement(verdicts):
                return await self._settle(verdicts, now_ms)
            case Pause(is_paused):
                await self.store.directory.change_queue(self.ref, QueueChange(is_paused=is_paused), now_ms)
            case Sweep():
                await self.store.sweep(1_000, now_ms)
        return None

    async def _claim_reserved(self, asks: list[ClaimRequest], now_ms: int) -> Claims:
        if isinstance(self.store, PostgresStore) and self.store._claims._uses_shortcuts:
            target, number = self.store.buffer_target(), sum(ask.limit for ask in asks)
            reserved = await target.call(target.reserve(self.ref, number, None, now_ms))
            if len(reserved) == number:
                claims = await target.call(target.claim_reserved(self.ref, asks, reserved, [], now_ms))
                if claims is not None:
                    return claims
        return await self.store.claim(self.ref, asks, now_ms)

    async def _settle(self, verdicts: list[tuple[Settle, int]], now_ms: int) -> list[Any]:
        meant = [
            Verdict(settle=settle, receipt=self.deliveries[-1 - back].receipt, error="no" if settle == "nack" else None)
            for settle, back in verdicts
            if back < len(self.deliveries)
        ]
        return [self._result(each) for each in await self.store.settle(self.ref, meant, now_ms)]

    def _enqueued(self, enqueued: Enqueued) -> Any:
        self.numbers[enqueued.snowflake] = len(self.numbers)
        return replace(enqueued, snowflake=self.numbers[enqueued.snowflake])

    def _result(self, result: Result) -> Any:
        return replace(result, snowflake=self.numbers[result.snowflake])

    def _claimed(self, claims: Claims) -> Any:
        self.deliveries += [delivery for given in claims.per_ask for delivery in given]
        per_ask = [[self._delivery(delivery) for delivery in given] for given in claims.per_ask]
        return per_ask, claims.next_at, claims.is_reread

    def _delivery(self, delivery: Delivery) -> Any:
        number = self.numbers[delivery.snowflake]
        receipt = Receipt(number, b"", delivery.receipt.version)
        return replace(delivery, snowflake=number, receipt=receipt)

    async def counts(self, now_ms: int) -> Any:
        return await self.store.counts(*self.ref, now_ms)

    async def messages(self, now_ms: int) -> Any:
        listing = await self.store.browse(self.ref, None, EVERYTHING, None, 1_000, now_ms)
        return [
            (
                replace(found.envelope, id=self.numbers[found.envelope.id]),
                replace(found.life, lease=found.life.lease and replace(found.life.lease, token=b"")),
                found.state,
            )
            for found in listing.found
        ]

    async def events(self, now_ms: int) -> Any:
        """Return the journal by message: how events of several messages stand in one step is a store's own affair."""
        by_message: defaultdict[int, list[Any]] = defaultdict(list)
        position = None
        while True:
            page = await self.store.journal(position, 1_000, self.ref.tenant, now_ms)
            for event in page.events:
                number = self.numbers[event.snowflake]
                by_message[number].append(asdict(event) | {"seq": 0, "shard": 0, "snowflake": number})
            if not page.events:
                return dict(by_message)
            position = page.position


# --- The comparison --------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    stores: list[Store]
    run: Callable[[Coroutine[Any, Any, None]], None]
    clock: ManualClock


@pytest.fixture(scope="module")
def bench(postgres: PostgresServer) -> Iterator[Bench]:
    """A store with shortcuts, one without, and the memory store; open for all histories."""
    clock = ManualClock()
    stores: list[Store] = [
        PostgresStore(
            postgres.make_databases(f"shortcuts_{uses_shortcuts}".lower()),
            FairDice(0),
            journal_retention_ms=_WEEK_MS,
            uses_caller_time=True,
            uses_shortcuts=uses_shortcuts,
        )
        for uses_shortcuts in (True, False)
    ]
    stores.append(MemoryStore(FairDice(0), _WEEK_MS))
    loop = asyncio.new_event_loop()

    async def open_all() -> list[LoopRuntime]:
        runtimes = [LoopRuntime(clock) for _ in stores]
        for store, runtime in zip(stores, runtimes, strict=True):
            await store.open(Deaf(), runtime)
        return runtimes

    async def close_all(runtimes: list[LoopRuntime]) -> None:
        for store, runtime in zip(stores, runtimes, strict=True):
            await store.close()
            await runtime.aclose()

    runtimes = loop.run_until_complete(open_all())
    yield Bench(stores, loop.run_until_complete, clock)
    loop.run_until_complete(close_all(runtimes))
    loop.close()


_tenants = count()


def assert_same(found: list[Any], after: Any) -> None:
    quick, stepped, reference = found
    assert quick == stepped, after
    assert stepped == reference, after


@pytest.mark.spec("2.2", "5.3")
@pytest.mark.slow
@given(policy=_policies, calls=_calls)
@example(
    # One batch with two receipts of a message: the lease of the first one has expired.
    policy=QueuePolicy(),
    calls=[
        Enqueue([Draft(payload=b"")]),
        Claim([ClaimRequest(lease_ms=300)]),
        Wait(300),
        Claim([ClaimRequest()]),
        Settlement([(Settle.ACK, 1), (Settle.ACK, 0)]),
    ],
)
@_SETTINGS
def test_shortcuts_do_what_the_shared_logic_does(bench: Bench, policy: QueuePolicy, calls: list[Call]) -> None:
    async def compare() -> None:
        ref = QueueRef(f"tenant{next(_tenants)}", "mail")
        sides = [Side(store, ref) for store in bench.stores]
        for side in sides:
            await side.store.directory.create_queue(ref, bench.clock.now_ms())
            await side.store.directory.change_queue(ref, QueueChange(policy=policy), bench.clock.now_ms())
        for call in calls:
            if isinstance(call, Wait):
                bench.clock.advance(call.ms)
            now_ms = bench.clock.now_ms()
            quick, stepped, reference = [await side.run(call, now_ms) for side in sides]
            assert quick == stepped, call
            # How soon the memory store wants to be asked again after a claim that gave something is its own affair.
            assert _without_next_at(call, stepped) == _without_next_at(call, reference), call
            assert_same([await side.counts(now_ms) for side in sides], call)
        assert_same([await side.messages(now_ms) for side in sides], calls)
        assert_same([await side.events(now_ms) for side in sides], calls)

    bench.run(compare())


def _without_next_at(call: Call, returned: Any) -> Any:
    return (returned[0], returned[2]) if isinstance(call, Claim | ClaimReserved) else returned


@pytest.mark.spec("5.3")
def test_every_shortcut_is_a_statement_that_names_its_function() -> None:
    assert set(SHORTCUTS) <= set(SQL)
    for name, function in SHORTCUTS.items():
        assert f"-- Equals {function.__module__}.{function.__name__}" in SQL[name]
