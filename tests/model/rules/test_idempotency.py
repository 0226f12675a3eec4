from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft
from holdfast.model.rules.idempotency import find_new, index_keys, make_results


def drafts_of(*keys: str | None) -> list[Draft]:
    return [Draft(payload=b"", key=key, correlation_id=f"c{place}") for place, key in enumerate(keys)]


def new(drafts: list[Draft], *seen: str, remembers_keys: bool = True) -> list[int]:
    return list(find_new(drafts, index_keys(drafts), seen, remembers_keys=remembers_keys))


def test_every_draft_without_a_key_is_a_message_of_its_own() -> None:
    assert new(drafts_of(None, None), "a") == [0, 1]


def test_the_first_draft_of_a_key_is_new_and_the_later_ones_repeat_it() -> None:
    drafts = drafts_of("a", None, "b", "a", "b")
    assert index_keys(drafts) == {"a": 0, "b": 2}
    assert new(drafts) == [0, 1, 2]


def test_a_key_that_the_queue_remembers_is_no_new_message() -> None:
    assert new(drafts_of("a", "b", "a"), "a") == [1]


def test_a_queue_without_a_window_takes_every_draft_but_those_it_still_remembers() -> None:
    assert new(drafts_of("a", "a", "b"), "b", remembers_keys=False) == [0, 1]


def test_a_repeated_draft_is_answered_with_the_first_message_of_its_key() -> None:
    drafts = drafts_of("a", "b", "a", None, "b")
    seen = {"b": Enqueued(snowflake=7, given_correlation_id="older", duplicate=True)}
    assert make_results(drafts, new(drafts, *seen), [10, 11], seen) == [
        Enqueued(snowflake=10, given_correlation_id="c0"),
        Enqueued(snowflake=7, given_correlation_id="older", duplicate=True),
        Enqueued(snowflake=10, given_correlation_id="c0", duplicate=True),
        Enqueued(snowflake=11, given_correlation_id="c3"),
        Enqueued(snowflake=7, given_correlation_id="older", duplicate=True),
    ]


def test_without_repetitions_each_draft_gets_the_id_made_for_it() -> None:
    drafts = drafts_of(None, "a")
    assert [each.snowflake for each in make_results(drafts, new(drafts), [1, 2], {})] == [1, 2]
