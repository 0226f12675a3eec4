import pickle

import pytest

import holdfast
from holdfast.model import errors
from holdfast.model.errors import ERRORS_BY_CODE, HoldfastError, Refused, Throttled, Unavailable

# SPEC 3.11, with the class the caller's next move puts each in.
CODES: dict[str, tuple[str, type[HoldfastError]]] = {
    "invalid_name": ("InvalidName", Refused),
    "invalid_argument": ("InvalidArgument", Refused),
    "unauthenticated": ("Unauthenticated", Refused),
    "forbidden": ("Forbidden", Refused),
    "queue_not_found": ("QueueNotFound", Refused),
    "message_not_found": ("MessageNotFound", Refused),
    "stale_lease": ("StaleLease", Refused),
    "conflict": ("Conflict", Refused),
    "already_exists": ("AlreadyExists", Refused),
    "draining": ("Draining", Refused),
    "payload_too_large": ("PayloadTooLarge", Refused),
    "over_quota": ("OverQuota", Throttled),
    "rate_limited": ("RateLimited", Throttled),
    "store_unavailable": ("StoreUnavailable", Unavailable),
    "internal": ("Internal", Unavailable),
}


def test_there_is_one_class_for_each_code_and_no_other() -> None:
    assert {code: (error.__name__, error.__base__) for code, error in ERRORS_BY_CODE.items()} == CODES
    here = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, HoldfastError)}
    leaves = {each for each in here if here.isdisjoint(each.__subclasses__())}
    assert leaves == set(ERRORS_BY_CODE.values())


@pytest.mark.parametrize("code", CODES)
def test_an_error_has_its_code_its_message_and_its_facts_and_is_public(code: str) -> None:
    kind = ERRORS_BY_CODE[code]
    error = kind("do something else", queue="mail")

    assert getattr(holdfast, kind.__name__) is kind
    assert isinstance(error, HoldfastError)
    assert (kind.code, error.code) == (code, code)
    assert str(error) == error.message == "do something else"
    assert error.facts["queue"] == "mail"
    assert error.queue == "mail"  # type: ignore[attr-defined]


def test_the_tree_has_three_branches_by_the_callers_next_move() -> None:
    assert set(HoldfastError.__subclasses__()) == {Refused, Throttled, Unavailable}
    assert not any(issubclass(one, other) for one in (Refused, Throttled, Unavailable)
                   for other in (Refused, Throttled, Unavailable) if one is not other)  # fmt: skip


def test_a_throttled_caller_is_told_how_long_to_wait() -> None:
    assert errors.RateLimited("slower", retry_after_ms=250).retry_after_ms == 250
    assert errors.OverQuota("full").retry_after_ms == 1_000
    assert errors.RateLimited("slower", retry_after_ms=250).facts == {"retry_after_ms": 250}


@pytest.mark.parametrize("code", CODES)
def test_an_error_survives_pickling_with_its_facts(code: str) -> None:
    error = ERRORS_BY_CODE[code]("change it", queue="mail")
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert (again.message, again.code, again.facts) == (error.message, error.code, error.facts)
