"""`holdfast db reshard DIR --shards N`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.stores.rocks.verify.store_check import verify
from tests.cli.conftest import Ran
from tests.listing import listing_of

Run = Callable[..., Ran]


@pytest.fixture
def store(alone: None) -> Path:
    with holdfast.open("data", shards=2, durability="os") as hf:
        for number in range(8):
            hf.queue(f"queue-{number}").enqueue([b"a", b"b"])
    return Path("data")


@pytest.mark.spec("4.4")
def test_a_store_gets_another_number_of_shards_and_is_used_as_before(store: Path, run: Run) -> None:
    ran = run("db", "reshard", store, "--shards", 4)
    assert ran.code == 0
    assert ran.out == "data now has 4 shards (before: 2): 8 queues, 16 messages; verified\n"
    assert not verify(store).violations
    with holdfast.open("data", shards=4) as hf:
        assert hf.tenant().stats().ready == 16


def test_with_fewer_shards_it_says_where_readers_of_the_journal_continue(store: Path, run: Run) -> None:
    ran = run("db", "reshard", store, "--shards", 1)
    assert ran.out.splitlines()[0] == "data now has 1 shard (before: 2): 8 queues, 16 messages; verified"
    assert "continue at 16" in ran.out
    again = run("db", "reshard", store, "--shards", 1)
    assert (again.code, again.out) == (0, "data already has 1 shard: nothing to do\n")


def test_it_answers_in_json(store: Path, run: Run) -> None:
    ran = run("db", "reshard", store, "--shards", 3, "--json")
    assert json.loads(ran.out) == {
        "path": "data",
        "before": 2,
        "shards": 3,
        "queues": 8,
        "messages": 16,
        "position": None,
    }


def test_bad_numbers_a_missing_store_and_a_store_in_use_are_refused_and_change_nothing(store: Path, run: Run) -> None:
    before = listing_of(store)
    for shards in (0, 65):
        ran = run("db", "reshard", store, "--shards", shards)
        assert (ran.code, "give 1 to 64" in ran.err) == (4, True), ran
    ran = run("db", "reshard", "nowhere", "--shards", 2)
    assert (ran.code, "holds no store" in ran.err) == (4, True), ran
    assert listing_of(store) == before
    with holdfast.open("data") as hf:
        ran = run("db", "reshard", store, "--shards", 3)
        assert (ran.code, "in use" in ran.err) == (75, True), ran
        assert hf.tenant().stats().ready == 16
