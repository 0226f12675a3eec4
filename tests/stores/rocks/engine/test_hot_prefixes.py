"""The busiest queues of each column family are found by samples of its reads and writes (SPEC 8.10)."""

from pathlib import Path

import pytest

import holdfast
from holdfast.model.answers import Access
from holdfast.model.names import QueueRef
from holdfast.stores.rocks import hot_prefixes, keys
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.hot_prefixes import READ_GAP, PrefixSamples, ShardSamples, hot_queues, prefix_of
from tests.stores.rocks.made_store import GONE, GROUPED, JOBS, OTHER, make_healthy

ID = bytes(16)


class Seconds:
    """Steady time that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def name_of(p: bytes) -> QueueRef:
    tenant_id, queue_id = keys.parse_prefix(p)
    return QueueRef(f"t{tenant_id}", f"q{queue_id}")


def shard(reads: PrefixSamples | None = None, writes: PrefixSamples | None = None) -> ShardSamples:
    return ShardSamples(reads or PrefixSamples(READ_GAP), writes or PrefixSamples(READ_GAP), name_of)


def read(samples: PrefixSamples, queue_id: int, number: int = 1) -> None:
    """Read messages of a queue, as the database does."""
    for _ in range(number):
        samples.left -= 1
        if samples.left < 0:
            samples.note_read(keys.MESSAGES, keys.prefix(1, queue_id) + ID)


def shares(*shards: ShardSamples) -> dict[str, float]:
    return {each.queue: each.share for each in hot_queues(shards)}


# --- The queue of a key ------------------------------------------------------------------------------------------


@pytest.mark.spec("8.10")
def test_every_key_of_a_store_is_counted_for_the_queue_that_it_belongs_to(tmp_path: Path) -> None:
    made = make_healthy(tmp_path / "store")
    database = Database(made.path)
    try:
        known = {JOBS, GROUPED, GONE, OTHER}
        found: dict[int, set[bytes]] = {}
        for family in range(len(keys.FAMILY_NAMES)):
            for key in database.scan(family, b"", b"\xff" * 32):
                p = prefix_of(family, key)
                assert p in known or not p, (family, key)
                # Whatever has the prefix of a queue in it is counted for that queue.
                assert p or not any(each in key for each in known) or family == keys.JOURNAL, (family, key)
                found.setdefault(family, set()).add(p)
    finally:
        database.close()
    for family in (keys.MESSAGES, keys.VISIBLE, keys.EXPIRIES, keys.LEASES):
        assert b"" not in found[family]
    assert found[keys.JOURNAL] == {b""}


@pytest.mark.spec("8.10")
@pytest.mark.parametrize("family", range(len(keys.FAMILY_NAMES)))
def test_a_bound_of_a_scan_over_several_queues_belongs_to_none(family: int) -> None:
    for bound in (b"", b"f", b"t", b"c/", b"t" + bytes(8), b"c/" + bytes(4)):
        assert prefix_of(family, bound)[:0] == b""
        assert len(prefix_of(family, bound)) in (0, keys.P_SIZE)


# --- Counting ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("8.10")
def test_the_shares_are_those_of_the_reads() -> None:
    samples = PrefixSamples(READ_GAP, Seconds())
    for _ in range(5_000):
        read(samples, 1, 6)
        read(samples, 2, 3)
        read(samples, 3, 1)
    found = shares(shard(reads=samples))
    assert list(found) == ["q1", "q2", "q3"]
    assert found == pytest.approx({"q1": 0.6, "q2": 0.3, "q3": 0.1}, abs=0.06)


@pytest.mark.spec("8.10")
def test_a_regular_pattern_of_reads_is_not_always_met_at_the_same_point() -> None:
    samples = PrefixSamples(READ_GAP, Seconds())
    for number in range(64_000):
        read(samples, number % 64)
    found = {each.queue for each in hot_queues([shard(reads=samples)], limit=64)}
    assert len(found) == 64


@pytest.mark.spec("8.10")
def test_counts_halve_so_that_the_shares_are_those_of_the_last_minute() -> None:
    seconds = Seconds()
    samples = PrefixSamples(READ_GAP, seconds)
    read(samples, 1, 10_000)
    seconds.now = 60.0
    read(samples, 2, 10_000)
    assert shares(shard(reads=samples)) == pytest.approx({"q1": 0.2, "q2": 0.8}, abs=0.05)
    seconds.now = 100_000.0
    assert shares(shard(reads=samples)) == {}


@pytest.mark.spec("8.10")
def test_counts_of_shards_are_added_before_shares_are_taken() -> None:
    busy, idle = PrefixSamples(READ_GAP, Seconds()), PrefixSamples(READ_GAP, Seconds())
    read(busy, 1, 90_000)
    read(idle, 2, 10_000)
    assert shares(shard(reads=busy), shard(reads=idle)) == pytest.approx({"q1": 0.9, "q2": 0.1}, abs=0.03)


@pytest.mark.spec("8.10")
def test_the_number_of_counted_queues_is_bounded_and_the_busiest_are_kept() -> None:
    samples = PrefixSamples(READ_GAP, Seconds())
    for number in range(200_000):
        read(samples, 0 if number % 2 else number)
    [counted] = samples.counts()
    assert len(counted.counts) <= hot_prefixes._MAX_QUEUES + 1
    found = hot_queues([shard(reads=samples)])
    assert len(found) == hot_prefixes.SHOWN_QUEUES
    assert (found[0].queue, found[0].share) == ("q0", pytest.approx(0.5, abs=0.05))


@pytest.mark.spec("8.10")
def test_a_read_of_many_keys_counts_as_many() -> None:
    samples = PrefixSamples(READ_GAP, Seconds())
    for _ in range(20_000):
        read(samples, 1)
        samples.left -= 1
        if samples.left < 0:
            samples.note_read(keys.MESSAGES, keys.prefix(1, 2) + ID, 9)
    assert shares(shard(reads=samples)) == pytest.approx({"q1": 0.1, "q2": 0.9}, abs=0.03)


# --- A store -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("8.10")
@pytest.mark.parametrize("shards", [1, 3])
def test_a_store_names_the_queues_that_write_most_of_each_family(tmp_path: Path, shards: int) -> None:
    with holdfast.open(tmp_path / "store", durability="os", shards=shards) as hf:
        assert hf.hot_queues() == []
        for _ in range(600):
            for queue, number in (("busy", 8), ("quiet", 2)):
                q = hf.queue(queue, tenant="acme")
                for _ in range(number):
                    q.enqueue(b"x")
                    [message] = q.claim()
                    message.ack()
        found = {(each.family, each.queue): each for each in hf.hot_queues() if each.access is Access.WRITE}
    for family in ("m", "vi", "li", "le"):
        assert found[family, "busy"].share == pytest.approx(0.8, abs=0.12)
        assert found[family, "quiet"].share == pytest.approx(0.2, abs=0.12)
        assert found[family, "busy"].tenant == "acme"
    assert not [family for family, _ in found if family == "jr"]


@pytest.mark.spec("8.10")
def test_a_batch_counts_by_its_messages(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store", durability="os") as hf:
        one, many = hf.queue("one"), hf.queue("many")
        for _ in range(1_500):
            one.enqueue(b"x")
            many.enqueue([b"x"] * 9)
        found = {each.queue: each.share for each in hf.hot_queues() if (each.family, each.access) == ("m", "write")}
    assert found == pytest.approx({"one": 0.1, "many": 0.9}, abs=0.06)


@pytest.mark.spec("8.10")
def test_a_store_names_the_queues_that_read_most(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store", durability="os") as hf:
        queues = {name: hf.queue(name) for name in ("busy", "quiet")}
        for q in queues.values():
            q.enqueue([b"x"] * 2)
        for _ in range(1_500):
            for name, number in (("busy", 4), ("quiet", 1)):
                for _ in range(number):
                    queues[name].list()
        found = {each.queue: each.share for each in hf.hot_queues() if (each.family, each.access) == ("m", "read")}
    assert found == pytest.approx({"busy": 0.8, "quiet": 0.2}, abs=0.12)


@pytest.mark.spec("8.10")
def test_a_store_without_column_families_has_no_hot_queues() -> None:
    with holdfast.open("memory://") as hf:
        hf.queue("q").enqueue([b"x"] * 100)
        assert hf.hot_queues() == []
