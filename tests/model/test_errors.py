import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

import holdfast
from holdfast.model import errors
from holdfast.model.errors import ERRORS_BY_CODE, HoldfastError, Refused, Throttled, Unavailable

# The codes of SPEC 3.11, each with its class and branch.
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


@pytest.mark.spec("3.11")
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
    assert vars(error)["queue"] == "mail"


def test_the_tree_has_three_branches_by_the_callers_next_move() -> None:
    assert set(HoldfastError.__subclasses__()) == {Refused, Throttled, Unavailable}
    assert not any(issubclass(one, other) for one in (Refused, Throttled, Unavailable)
                   for other in (Refused, Throttled, Unavailable) if one is not other)  # fmt: skip


def test_a_throttled_caller_gets_the_time_to_wait() -> None:
    assert errors.RateLimited("slower", retry_after_ms=250).retry_after_ms == 250
    assert errors.OverQuota("full").retry_after_ms == 1_000
    assert errors.RateLimited("slower", retry_after_ms=250).facts == {"retry_after_ms": 250}


def test_a_fact_that_was_not_given_has_its_default_and_is_not_among_the_facts() -> None:
    error = errors.StaleLease("claim again", id="m-1")

    assert (error.id, error.is_unsure, error.facts) == ("m-1", False, {"id": "m-1"})


def given_facts() -> Iterator[tuple[type[HoldfastError], str]]:
    """Yield each fact that the source gives to an error, with the error's class."""
    kinds = {kind.__name__: kind for kind in ERRORS_BY_CODE.values()}
    for file in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                yield from ((kinds[node.func.id], each.arg) for each in node.keywords if each.arg is not None)


def test_every_fact_of_an_error_is_a_typed_attribute_of_its_class() -> None:
    given = set(given_facts())
    assert len(given) > 30
    assert {(kind.__name__, fact) for kind, fact in given if fact not in get_type_hints(kind)} == set()


def test_the_tree_in_the_docstring_shows_each_class_under_its_branch_with_its_code() -> None:
    drawn, branch = {}, ""
    for indent, name, word in re.findall(r"^    (│? *)[├└]── (\w+) +(\w+)", errors.__doc__ or "", re.MULTILINE):
        if indent:
            drawn[word] = (name, branch)
        else:
            branch = name
    assert drawn == {code: (name, base.__name__) for code, (name, base) in CODES.items()}


@pytest.mark.parametrize("code", CODES)
def test_an_error_survives_pickling_with_its_facts(code: str) -> None:
    error = ERRORS_BY_CODE[code]("change it", queue="mail")
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert (again.message, again.code, again.facts) == (error.message, error.code, error.facts)
