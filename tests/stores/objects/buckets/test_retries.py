import asyncio
from collections.abc import Iterator

import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import ObjectMissing, PreconditionFailed, Unanswered
from holdfast.stores.objects.buckets.retries import Busy, as_unavailable, retry_conflicts


def attempts(*outcomes: Exception | int) -> Iterator[Exception | int]:
    yield from outcomes


async def again(outcomes: Iterator[Exception | int]) -> int:
    outcome = next(outcomes)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_a_conflicting_write_is_tried_again_and_a_step_is_waited_for() -> None:
    outcomes, pauses = attempts(PreconditionFailed(), Busy("a"), PreconditionFailed(), 7), list[str | None]()

    async def pause(busy: Busy) -> None:
        pauses.append(busy.step)

    assert asyncio.run(retry_conflicts(lambda: again(outcomes), "it", pause)) == 7
    assert pauses == ["a"]


def test_after_the_last_attempt_the_store_is_unavailable_and_says_what_kept_changing() -> None:
    outcomes = attempts(PreconditionFailed(), PreconditionFailed(), 7)
    with pytest.raises(StoreUnavailable, match="gave up after 2 conflicting writes to acme/mail; try again"):
        asyncio.run(retry_conflicts(lambda: again(outcomes), "acme/mail", tries=2))
    assert next(outcomes) == 7


def test_an_error_other_than_a_conflict_is_raised_at_once() -> None:
    for error, on in ((ValueError(), (PreconditionFailed, Busy)), (PreconditionFailed(), (Busy,))):
        outcomes = attempts(error, 7)
        with pytest.raises(type(error)):
            asyncio.run(retry_conflicts(lambda: again(outcomes), "it", on=on))  # noqa: B023
        assert next(outcomes) == 7


def test_a_bucket_that_does_not_answer_is_unavailable_and_a_missing_object_is_missing() -> None:
    with pytest.raises(StoreUnavailable, match="the bucket does not respond: 503"), as_unavailable():
        raise Unanswered("503")
    with pytest.raises(ObjectMissing), as_unavailable():
        raise ObjectMissing
