import pytest

from holdfast.model.rules.claims import group_head, next_claim_at, replace_head


def unasked() -> int:
    raise AssertionError("the soonest instant is looked for only where it matters")


@pytest.mark.parametrize("is_served", [False, True])
def test_a_paused_queue_has_nothing_to_claim_before_it_changes(is_served: bool) -> None:
    assert next_claim_at(is_paused=True, is_served=is_served, now_ms=5, soonest=unasked) is None


def test_after_a_claim_that_served_every_ask_there_may_be_more_now() -> None:
    assert next_claim_at(is_paused=False, is_served=True, now_ms=5, soonest=unasked) == 5


@pytest.mark.parametrize("soonest", [None, 9])
def test_after_a_claim_that_left_an_ask_empty_the_soonest_end_or_start_counts(soonest: int | None) -> None:
    assert next_claim_at(is_paused=False, is_served=False, now_ms=5, soonest=lambda: soonest) == soonest


def test_a_group_shows_its_oldest_ready_message() -> None:
    assert group_head(is_busy=False, first=lambda: 3) == 3
    assert group_head(is_busy=False, first=lambda: None) is None


def test_a_group_shows_nothing_while_one_of_its_messages_is_in_flight() -> None:
    assert group_head(is_busy=True, first=unasked) is None


@pytest.mark.parametrize(
    ("shown", "head", "turned"),
    [(None, 1, (None, 1)), (1, 2, (1, 2)), (1, None, (1, None)), (1, 1, (None, None)), (None, None, (None, None))],
)
def test_a_head_that_changed_takes_the_place_of_the_one_before(
    shown: int | None, head: int | None, turned: tuple[int | None, int | None]
) -> None:
    assert replace_head(shown, head) == turned
