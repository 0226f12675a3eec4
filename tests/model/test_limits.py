import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.limits import CLOSED_MS, Charge, TokenBucket, capacity_of, charges_of, has_rates, is_limited
from holdfast.model.names import QueueRef
from holdfast.model.policy import Limits, QueuePolicy

rates = st.one_of(st.integers(1, 10_000), st.floats(0.001, 1e6))
pauses = st.lists(st.integers(0, 5_000), min_size=1, max_size=30)


def taken(bucket: TokenBucket, amount: int, now_ms: int) -> bool:
    if bucket.shortage_ms(amount, now_ms):
        return False
    bucket.take(amount, now_ms)
    return True


@pytest.mark.spec("8.7")
@settings(deadline=None)
@given(rates, st.floats(0, 10), pauses, st.integers(1, 10))
def test_in_no_window_is_more_let_in_than_the_rate_and_one_capacity(
    rate: float, burst_s: float, waits: list[int], eager: int
) -> None:
    capacity = capacity_of(rate, burst_s)
    bucket = TokenBucket(rate, capacity, 0)
    now_ms, let_in = 0, []
    for wait in waits:
        now_ms += wait
        let_in += [now_ms for _ in range(eager) if taken(bucket, 1, now_ms)]
    for first, start in enumerate(let_in):
        for last in range(first, len(let_in)):
            allowed = rate * (let_in[last] - start) / 1_000 + capacity
            assert last - first + 1 <= allowed + 1e-6 * allowed


@given(rates, st.floats(0, 10), st.lists(st.integers(1, 500), min_size=1, max_size=50))
def test_a_caller_that_comes_back_after_the_given_time_is_let_in_and_not_a_millisecond_sooner(
    rate: float, burst_s: float, amounts: list[int]
) -> None:
    bucket = TokenBucket(rate, capacity_of(rate, burst_s), 0)
    now_ms = 0
    for amount in amounts:
        wait = bucket.shortage_ms(amount, now_ms)
        if wait > 1:
            assert bucket.shortage_ms(amount, now_ms + wait - 1) > 0
        now_ms += wait
        assert taken(bucket, amount, now_ms)


@given(st.integers(1, 1_000), st.floats(0, 3), st.lists(st.integers(1, 5_000), min_size=5, max_size=50))
def test_however_large_the_calls_the_rate_is_kept_in_the_long_run(
    rate: int, burst_s: float, amounts: list[int]
) -> None:
    capacity = capacity_of(rate, burst_s)
    bucket = TokenBucket(rate, capacity, 0)
    now_ms, total = 0, 0
    for amount in amounts:
        now_ms += bucket.shortage_ms(amount, now_ms)
        bucket.take(amount, now_ms)
        # Except for the last call, which may have been larger than the bucket.
        assert total <= rate * now_ms / 1_000 + capacity + 1e-6 * (total + 1)
        total += amount


@given(rates, st.lists(st.tuples(st.integers(-5_000, 2_000), st.integers(1, 5)), max_size=100))
def test_a_clock_that_steps_back_never_refills(rate: float, steps: list[tuple[int, int]]) -> None:
    capacity = capacity_of(rate, 1)
    stepping, steady = TokenBucket(rate, capacity, 0), TokenBucket(rate, capacity, 0)
    now_ms = latest_ms = 0
    for step, amount in steps:
        now_ms += step
        latest_ms = max(latest_ms, now_ms)
        assert stepping.shortage_ms(amount, now_ms) == steady.shortage_ms(amount, latest_ms)
        if taken(stepping, amount, now_ms):
            steady.take(amount, latest_ms)


def test_a_bucket_holds_its_burst_and_at_least_one_operation() -> None:
    assert capacity_of(10, 2.5) == 25
    assert capacity_of(0.1, 1) == 1
    assert capacity_of(10, 0) == 1
    assert capacity_of(0, 10) == 0


def test_a_closed_bucket_lets_nothing_in_but_what_weighs_nothing() -> None:
    bucket = TokenBucket(0, capacity_of(0, 1), 0)
    assert bucket.shortage_ms(1, 10**12) == CLOSED_MS
    assert bucket.shortage_ms(0, 10**12) == 0


def test_the_slowest_rate_answers_a_number() -> None:
    bucket = TokenBucket(5e-324, 1.0, 0)
    bucket.take(1, 0)
    assert bucket.shortage_ms(1, 0) > 0


def test_what_is_given_back_never_makes_more_than_a_full_bucket() -> None:
    bucket = TokenBucket(1, 5, 0)
    bucket.take(3, 0)
    bucket.give_back(3, 60_000)
    assert bucket.is_full(60_000)
    assert bucket.shortage_ms(5, 60_000) == 0
    bucket.take(5, 60_000)
    assert bucket.shortage_ms(1, 60_000) == 1_000


def test_a_debt_is_filled_up_first() -> None:
    bucket = TokenBucket(10, 10, 0)
    bucket.take(30, 0)
    assert bucket.shortage_ms(1, 0) == 2_100
    assert bucket.shortage_ms(0, 1_999) == 1
    assert not bucket.is_full(2_999)
    assert bucket.is_full(3_000)


def test_a_changed_rate_keeps_what_was_used() -> None:
    bucket = TokenBucket(10, 10, 0)
    bucket.take(10, 0)
    bucket.change(100, 100, 50)  # half a token was added at the old rate
    assert bucket.shortage_ms(1, 50) == 5
    bucket.change(1, 1, 10_000)
    assert bucket.shortage_ms(1, 10_000) == 0
    bucket.take(1, 10_000)
    assert bucket.shortage_ms(1, 10_000) == 1_000


def test_reads_and_writes_are_charged_to_limits_of_their_own() -> None:
    limits = Limits(write_ops_per_s=1, write_bytes_per_s=2, read_ops_per_s=3, burst_s=10)
    ref = QueueRef("acme", "jobs")
    assert charges_of(limits, ref, "write", 7, 8) == [
        Charge(ref, "write_ops_per_s", 1, 10, 7),
        Charge(ref, "write_bytes_per_s", 2, 20, 8),
    ]
    assert charges_of(limits, "acme", "read", 7, 8) == [Charge("acme", "read_ops_per_s", 3, 30, 7)]


@pytest.mark.parametrize("field", ["write_ops_per_s", "write_bytes_per_s", "read_ops_per_s", "read_bytes_per_s"])
def test_any_rate_is_a_limit_and_a_rate_of_0_too(field: str) -> None:
    limits = Limits(**{field: 0})  # type: ignore[arg-type]  # fields of several types
    assert has_rates(limits)
    assert is_limited(QueuePolicy(limits=limits))


def test_a_burst_alone_is_no_limit_and_a_cap_is_one() -> None:
    assert not is_limited(QueuePolicy(limits=Limits(burst_s=5)))
    assert is_limited(QueuePolicy(max_claims=0))
    assert is_limited(QueuePolicy(max_enqueues=1))
