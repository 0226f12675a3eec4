import asyncio
from collections.abc import Iterator

import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import ObjectMissing, PreconditionFailed, Unanswered
from holdfast.stores.objects.buckets.retries import Busy, answered, until_unchanged


def attempts(*outcomes: Exception | int) -> Iterator[Exception | int]:
    yield from outcomes


async def again(outcomes: Iterator[Exception | int]) -> int:
    outcome = next(outcomes)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_an_attempt_that_another_defeated_is_made_again() -> None:
    outcomes = attempts(PreconditionFailed(), Busy(), PreconditionFailed(), 7)
    assert asyncio.run(until_unchanged(lambda: again(outcomes), "no")) == 7


def test_after_so_many_attempts_the_caller_is_told_to_come_later() -> None:
    outcomes = attempts(PreconditionFailed(), PreconditionFailed(), 7)
    with pytest.raises(StoreUnavailable, match="it changes all the time: later"):
        asyncio.run(until_unchanged(lambda: again(outcomes), "it changes all the time: later", tries=2))
    assert next(outcomes) == 7


def test_an_error_that_no_repetition_mends_ends_it_at_once() -> None:
    for error, on in ((ValueError(), (PreconditionFailed, Busy)), (PreconditionFailed(), (Busy,))):
        outcomes = attempts(error, 7)
        with pytest.raises(type(error)):
            asyncio.run(until_unchanged(lambda: again(outcomes), "no", on=on))  # noqa: B023
        assert next(outcomes) == 7


def test_a_bucket_that_does_not_answer_is_unavailable_and_a_missing_object_is_missing() -> None:
    with pytest.raises(StoreUnavailable, match="the bucket does not answer: 503"), answered():
        raise Unanswered("503")
    with pytest.raises(ObjectMissing), answered():
        raise ObjectMissing
