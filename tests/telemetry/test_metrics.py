"""Metrics count calls and transitions by tenant and queue, with a limited number of label sets."""

import asyncio
from pathlib import Path

import pytest

from holdfast.model.answers import Access, HotQueue
from holdfast.model.errors import InvalidName
from holdfast.model.events import Event
from holdfast.model.names import QueueNumbers, QueueRef, parse_ref
from holdfast.runtime import LoopRuntime
from holdfast.stores.memory import MemoryStore
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.telemetry.declared import FAMILIES
from holdfast.telemetry.figures import Figures, Histogram
from holdfast.telemetry.labels import MetricsNames
from holdfast.telemetry.lag import EVERY_MS, LoopLag
from holdfast.telemetry.metrics import OK, Metrics
from holdfast.testing import EmbeddedSubject, ManualClock
from tests.telemetry.scraping import FixedSource, metrics_of, sample, samples, stats, store_of

WEEK_MS = 7 * 86_400_000
A = QueueRef("acme", "a")


def memory() -> EmbeddedSubject:
    return EmbeddedSubject(lambda dice: MemoryStore(dice, WEEK_MS))


@pytest.fixture(params=["memory", "os", "fsync"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> EmbeddedSubject:
    if request.param == "memory":
        return memory()
    return EmbeddedSubject(
        lambda dice: RocksStore(
            tmp_path / "store", dice, durability=Durability(request.param), journal_retention_ms=WEEK_MS
        )
    )


# --- Requests ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("8.2", "8.10")
async def test_requests_are_counted_by_operation_queue_and_outcome() -> None:
    metrics = Metrics(FixedSource({A: stats()}))
    for seconds in (0.0005, 0.003, 40.0):
        metrics.request("enqueue", A, OK, seconds)
    metrics.request("enqueue", A, "over_quota", 0.002)
    metrics.request("journal", None, OK, 0.01)
    text = await metrics.render()
    where = {"operation": "enqueue", "tenant": "acme", "queue": "a"}
    assert sample(text, "holdfast_requests_total", outcome="ok", **where) == 3
    assert sample(text, "holdfast_requests_total", outcome="over_quota", **where) == 1
    assert sample(text, "holdfast_requests_total", operation="journal", outcome="ok", tenant="", queue="") == 1
    # Failed requests count too.
    assert sample(text, "holdfast_request_seconds_count", **where) == 4
    assert sample(text, "holdfast_request_seconds_bucket", le="0.001", **where) == 1
    assert sample(text, "holdfast_request_seconds_bucket", le="0.0025", **where) == 2
    assert sample(text, "holdfast_request_seconds_bucket", le="30.0", **where) == 3
    assert sample(text, "holdfast_request_seconds_bucket", le="+Inf", **where) == 4
    assert sample(text, "holdfast_request_seconds_sum", **where) == pytest.approx(40.0055)


async def test_counts_only_rise_from_scrape_to_scrape() -> None:
    metrics = Metrics(FixedSource({A: stats()}))
    where = {"operation": "ack", "tenant": "acme", "queue": "a"}
    for expected in (1, 2, 3):
        metrics.request("ack", A, OK, 0.001)
        text = await metrics.render()
        assert sample(text, "holdfast_requests_total", outcome="ok", **where) == expected
        assert sample(text, "holdfast_request_seconds_count", **where) == expected


@pytest.mark.spec("8.10")
async def test_limits_are_counted_with_what_they_decided_and_how_long_calls_waited() -> None:
    metrics = Metrics(FixedSource({A: stats()}))
    metrics.decided(A, "write", "admitted")
    metrics.decided(A, "write", "admitted")
    metrics.decided(A, "write", "refused")
    metrics.waited(A, "read", 7)
    text = await metrics.render()
    where = {"tenant": "acme", "queue": "a"}
    assert sample(text, "holdfast_limit_decisions_total", kind="write", outcome="admitted", **where) == 2
    assert sample(text, "holdfast_limit_decisions_total", kind="write", outcome="refused", **where) == 1
    assert sample(text, "holdfast_limit_wait_seconds_sum", kind="read", **where) == 0.007
    assert sample(text, "holdfast_limit_wait_seconds_bucket", kind="read", le="0.005", **where) == 0
    assert sample(text, "holdfast_limit_wait_seconds_bucket", kind="read", le="0.01", **where) == 1


# --- Stored messages and transitions --------------------------------------------------------------------------------


async def test_connections_that_wait_at_the_socket_are_shown_with_how_often_and_how_long_they_had_to() -> None:
    class Turns:
        waiting = 3
        waits = Histogram((0.001, 0.1))

    metrics = Metrics()
    assert "holdfast_turn" not in (await metrics.render()).decode()
    metrics.turns = Turns()
    for seconds in (0.0005, 0.05, 0.05):
        Turns.waits.observe(seconds)
    text = await metrics.render()
    assert sample(text, "holdfast_turns_waiting") == 3
    assert sample(text, "holdfast_turn_wait_seconds_count") == 3
    assert sample(text, "holdfast_turn_wait_seconds_bucket", le="0.001") == 1
    assert sample(text, "holdfast_turn_wait_seconds_sum") == pytest.approx(0.1005)


@pytest.mark.spec("8.10")
async def test_depth_age_and_waiters_are_read_at_each_scrape(subject: EmbeddedSubject) -> None:
    async with subject.open() as hf:
        metrics = metrics_of(hf, subject.clock)
        q, idle = hf.queue("a", tenant="acme"), hf.queue("idle", tenant="acme")
        await q.enqueue([b"123"] * 5)
        await q.enqueue([b""] * 2, delay=60)
        await q.nack(await q.claim(limit=1), final=True)
        await q.claim(limit=1)
        await idle.set_policy()
        waiting = asyncio.create_task(idle.claim(wait=None))
        await asyncio.sleep(0)
        await idle.pause()
        subject.clock.advance(2_500)
        text = await metrics.render()
        where = {"tenant": "acme", "queue": "a"}
        counted = {
            state: sample(text, "holdfast_messages", state=state, **where)
            for state in ("ready", "delayed", "in_flight", "failed")
        }
        assert counted == {"ready": 3, "delayed": 2, "in_flight": 1, "failed": 1}
        assert sample(text, "holdfast_queue_bytes", **where) == 15
        assert sample(text, "holdfast_queue_oldest_ready_age_seconds", **where) == 2.5
        assert sample(text, "holdfast_queue_waiters", tenant="acme", queue="idle") == 1
        assert sample(text, "holdfast_queue_paused", tenant="acme", queue="idle") == 1
        assert sample(text, "holdfast_queues") == 2
        waiting.cancel()


@pytest.mark.spec("8.10")
async def test_transitions_are_counted_for_every_caller(subject: EmbeddedSubject) -> None:
    async with subject.open() as hf:
        metrics = metrics_of(hf, subject.clock)
        q = hf.queue("a", tenant="acme")
        await q.enqueue([b""] * 4, max_retries=3)
        await q.claim(limit=3, lease=1)
        assert sample(await metrics.render(), "holdfast_transitions_total", event="claimed", tenant="acme", queue="a")
        subject.clock.advance(1_000)
        await subject.sweep(hf)
        await q.ack(await q.claim(limit=2, lease=1))
        text = await metrics.render()
        counted = {
            event: sample(text, "holdfast_transitions_total", event=event, tenant="acme", queue="a") for event in Event
        }
        assert {event: count for event, count in counted.items() if count} == {
            Event.ENQUEUED: 4,
            Event.CLAIMED: 5,
            Event.EXPIRED: 3,
            Event.SUCCEEDED: 2,
        }


async def test_a_store_that_was_closed_is_down_and_the_scrape_still_answers(subject: EmbeddedSubject) -> None:
    async with subject.open() as hf:
        metrics = metrics_of(hf, subject.clock)
        await hf.queue("a", tenant="acme").enqueue(b"")
        metrics.request("enqueue", A, OK, 0.001)
        text = await metrics.render()
        assert sample(text, "holdfast_store_up") == 1
    metrics.request("enqueue", A, "store_unavailable", 0.001)
    text = await metrics.render()
    assert sample(text, "holdfast_store_up") == 0
    # The queues are unknown, so none of them loses its labels.
    where = {"operation": "enqueue", "tenant": "acme", "queue": "a"}
    assert sample(text, "holdfast_requests_total", outcome="ok", **where) == 1
    assert sample(text, "holdfast_requests_total", outcome="store_unavailable", **where) == 1


@pytest.mark.spec("8.10")
async def test_the_embedded_store_is_shown_family_by_family(tmp_path: Path) -> None:
    subject = EmbeddedSubject(lambda dice: RocksStore(tmp_path / "s", dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        await hf.queue("a", tenant="acme").enqueue([b""] * 10)
        text = await metrics_of(hf, subject.clock).render()
        assert (sample(text, "holdfast_store_unwritten_bytes") or 0) > 0
        assert sample(text, "holdfast_rocksdb_keys", family="m") == 0
        await hf.backup(str(tmp_path / "copy"))
        text = await metrics_of(hf, subject.clock).render()
        assert sample(text, "holdfast_store_checkpoints_total") == 1
        assert sample(text, "holdfast_rocksdb_keys", family="m") == 10
        assert sample(text, "holdfast_store_sync_seconds_count") == 1
        assert (sample(text, "holdfast_store_free_bytes") or 0) > 0
        assert sample(text, "holdfast_rocksdb_level0_files", family="jr") == 1


@pytest.mark.spec("8.10")
async def test_the_busiest_queues_of_each_column_family_are_shown(tmp_path: Path) -> None:
    """SPEC 8.10."""
    hot = [
        HotQueue(family="m", access=Access.WRITE, tenant="acme", queue="a", share=0.5),
        HotQueue(family="m", access=Access.WRITE, tenant="acme", queue="b", share=0.25),
        HotQueue(family="m", access=Access.WRITE, tenant="acme", queue="c", share=0.125),
        HotQueue(family="vi", access=Access.READ, tenant="acme", queue="a", share=1.0),
    ]
    text = await Metrics(FixedSource({A: stats()}, Figures(hot=hot))).render()
    name = "holdfast_rocksdb_hot_queue_share"
    assert sample(text, name, family="m", access="write", tenant="acme", queue="a") == 0.5
    assert sample(text, name, family="vi", access="read", tenant="acme", queue="a") == 1
    # Queues without labels of their own are one series.
    assert sample(text, name, family="m", access="write", tenant="other", queue="other") == 0.375


# --- Label sets ----------------------------------------------------------------------------------------------------


async def test_a_hundred_thousand_queues_stay_below_five_mebibytes() -> None:
    queues = {QueueRef(f"tenant-{i % 500}", f"some-queue-name-{i}"): stats(ready=i) for i in range(100_000)}
    metrics = Metrics(FixedSource(queues), max_labels=1_000)
    for ref in queues:
        for operation in ("enqueue", "claim", "claim_wait", "ack", "nack"):
            metrics.request(operation, ref, OK, 0.001)
        metrics.decided(ref, "write", "admitted")
        metrics.waited(ref, "read", 1)
    for _ in range(2):
        text = await metrics.render()
        assert len(text) < 5 << 20
    assert sample(text, "holdfast_label_sets") == 1_000
    # Counts without labels are under `other`.
    every = [
        value
        for (name, labels), value in samples(text).items()
        if name == "holdfast_requests_total" and ("operation", "ack") in labels
    ]
    assert sum(every) == 100_000
    assert len(every) == 1_001
    where = {"operation": "ack", "tenant": "other", "queue": "other"}
    assert sample(text, "holdfast_requests_total", outcome="ok", **where) == 99_000


async def test_names_of_the_greatest_length_stay_below_five_mebibytes() -> None:
    queues = {QueueRef("t" * 128, f"{i:0128}"): stats() for i in range(2_000)}
    metrics = Metrics(FixedSource(queues), max_labels=1_000)
    for ref in queues:
        for operation in ("enqueue", "claim", "ack"):
            metrics.request(operation, ref, OK, 0.001)
    assert len(await metrics.render()) < 5 << 20


@pytest.mark.spec("8.10")
async def test_queues_beyond_the_cap_are_other_and_the_first_keep_their_labels() -> None:
    queues = {QueueRef("t", f"q{i}"): stats(ready=1, oldest_ready_age_ms=i * 1_000) for i in range(5)}
    metrics = Metrics(FixedSource(queues), max_labels=2)
    metrics.request("ack", QueueRef("t", "q4"), OK, 0.001)  # requested first
    text = await metrics.render()
    labelled = {dict(labels)["queue"] for name, labels in samples(text) if name == "holdfast_queue_bytes"}
    assert labelled == {"q4", "q0", "other"}
    assert sample(text, "holdfast_messages", state="ready", tenant="other", queue="other") == 3
    assert sample(text, "holdfast_queue_oldest_ready_age_seconds", tenant="other", queue="other") == 3
    metrics.request("ack", QueueRef("t", "q1"), OK, 0.001)
    text = await metrics.render()
    assert sample(text, "holdfast_requests_total", operation="ack", outcome="ok", tenant="other", queue="other") == 1
    assert sample(text, "holdfast_requests_total", operation="ack", outcome="ok", tenant="t", queue="q4") == 1


async def test_names_that_are_no_queue_take_no_labels() -> None:
    metrics = Metrics(FixedSource({A: stats()}), max_labels=10)
    for scrape in range(1, 4):
        for number in range(100):
            metrics.request("claim", QueueRef("acme", f"made-up-{number}"), OK, 0.001)
        metrics.request("claim", A, OK, 0.001)
        text = await metrics.render()
        assert b"made-up" not in text
        where = {"operation": "claim", "outcome": "ok"}
        # At the first scrape the invented names were before it; from then on it has labels.
        assert sample(text, "holdfast_requests_total", tenant="other", queue="other", **where) == 100 * scrape + 1
        assert (sample(text, "holdfast_requests_total", tenant="acme", queue="a", **where) or 0) == scrape - 1


async def test_a_deleted_queue_gives_its_labels_back() -> None:
    gone, fresh = QueueRef("t", "gone"), QueueRef("t", "fresh")
    source = FixedSource({gone: stats()})
    metrics = Metrics(source, max_labels=1)
    metrics.request("ack", gone, OK, 0.001)
    assert b'queue="gone"' in await metrics.render()
    source.known = {fresh: stats()}
    text = await metrics.render()
    assert b'queue="gone"' not in text
    assert b'queue="fresh"' in text
    # Its counts are not moved to `other`, where they would look like a burst.
    assert sample(text, "holdfast_requests_total", operation="ack", outcome="ok", tenant="other", queue="other") is None


@pytest.mark.spec("8.10")
async def test_metrics_can_name_tenants_and_queues_by_their_numbers() -> None:
    """SPEC 8.10."""
    source = FixedSource({A: stats(ready=3)})
    source.numbers = {A: QueueNumbers(5, 7)}
    metrics = Metrics(source, names=MetricsNames.IDS)
    metrics.request("enqueue", A, OK, 0.001)
    metrics.request("enqueue", QueueRef("acme", "unknown"), OK, 0.001)
    metrics.decided(A, "write", "admitted")
    text = await metrics.render()
    assert b"acme" not in text
    where = {"tenant": "5", "queue": "7"}
    assert sample(text, "holdfast_requests_total", operation="enqueue", outcome="ok", **where) == 1
    assert sample(text, "holdfast_limit_decisions_total", kind="write", outcome="admitted", **where) == 1
    assert sample(text, "holdfast_messages", state="ready", **where) == 3
    other = {"tenant": "other", "queue": "other"}
    assert sample(text, "holdfast_requests_total", operation="enqueue", outcome="ok", **other) == 1


@pytest.mark.spec("8.10")
async def test_a_queue_that_was_made_again_has_its_new_number_and_no_count_of_the_old_one() -> None:
    source = FixedSource({A: stats()})
    metrics = Metrics(source, names=MetricsNames.IDS)
    metrics.request("enqueue", A, OK, 0.001)
    await metrics.render()
    source.numbers = {A: QueueNumbers(1, 2)}
    await metrics.render()
    metrics.request("enqueue", A, OK, 0.001)
    text = await metrics.render()
    requests = {name: value for name, value in samples(text).items() if name[0] == "holdfast_requests_total"}
    assert [(dict(labels)["queue"], value) for (_, labels), value in requests.items()] == [("2", 1)]


async def test_a_store_that_is_down_gives_no_number_and_its_requests_are_other() -> None:
    metrics = Metrics(names=MetricsNames.IDS)
    metrics.request("enqueue", A, OK, 0.001)
    text = await metrics.render()
    assert sample(text, "holdfast_requests_total", operation="enqueue", outcome="ok", tenant="other", queue="other")


async def test_a_queue_that_is_called_other_is_counted_with_the_others() -> None:
    other = QueueRef("other", "other")
    metrics = Metrics(FixedSource({other: stats(ready=1)}), max_labels=10)
    for _ in range(2):
        metrics.request("ack", QueueRef("other", "other"), OK, 0.001)
        text = await metrics.render()
    where = {"tenant": "other", "queue": "other"}
    assert sample(text, "holdfast_requests_total", operation="ack", outcome="ok", **where) == 2
    assert sample(text, "holdfast_messages", state="ready", **where) == 1


HOSTILE = [
    'a"} 1\nforged_metric 1\n#',
    "a\nb",
    "a\\",
    "\x1b[31mred",
    "\u202ereversed",
    "",
    ".hidden",
    "x" * 129,
    "a b",
    "\0",
]


@pytest.mark.spec("1.2")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_name_never_reaches_a_label(name: str) -> None:
    with pytest.raises(InvalidName):
        parse_ref("t", name)
    # As from a door that does not check names, and a store that accepts them.
    for ref in (QueueRef("t", name), QueueRef(name, "q")):
        metrics = Metrics(FixedSource({ref: stats()}))
        metrics.request("enqueue", ref, OK, 0.001)
        metrics.decided(ref, "write", "admitted")
        text = await metrics.render()
        queues = {dict(labels).get("queue", "other") for _, labels in samples(text)}
        assert queues <= {"other"}
        assert b"forged" not in text


async def test_words_that_are_not_ours_are_other() -> None:
    metrics = Metrics(FixedSource({A: stats()}))
    for number in range(1_000):
        metrics.request(f"op{number}", A, OK, 0.001)
    metrics.request('x"} 1\nforged 1', A, 'y"\n', 0.001)
    text = await metrics.render()
    operations = {dict(labels)["operation"] for name, labels in samples(text) if name == "holdfast_requests_total"}
    assert len(operations) <= 257
    assert "other" in operations


# --- Scrapes -------------------------------------------------------------------------------------------------------


async def test_a_scrape_lets_others_have_their_turn() -> None:
    queues = {QueueRef("t", f"q{i}"): stats() for i in range(5_000)}
    metrics = Metrics(FixedSource(queues), max_labels=1_000)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await metrics.render()
    counting.cancel()
    assert turns > 5_000 / 200


async def test_a_scrape_that_is_broken_off_loses_no_count() -> None:
    subject = memory()
    async with subject.open() as hf:
        metrics = metrics_of(hf, subject.clock)
        for number in range(500):
            await hf.queue(f"q{number}", tenant="acme").enqueue(b"")
        scrape = asyncio.create_task(metrics.render())
        await asyncio.sleep(0)
        scrape.cancel()
        text = await metrics.render()
        every = [value for (name, _), value in samples(text).items() if name == "holdfast_transitions_total"]
        assert sum(every) == 500
        assert store_of(hf) is not None


async def test_two_servers_in_one_process_share_nothing() -> None:
    one, two = Metrics(FixedSource({A: stats()})), Metrics(FixedSource({A: stats()}))
    one.request("ack", A, OK, 0.001)
    assert b"holdfast_requests_total" in await one.render()
    assert b"holdfast_requests_total" not in await two.render()


async def test_version_process_and_label_sets_are_shown() -> None:
    text = await Metrics(FixedSource({A: stats()}), max_labels=7, version="1.2.3").render()
    assert sample(text, "holdfast_build_info", version="1.2.3") == 1
    assert sample(text, "holdfast_label_sets") == 1
    assert sample(text, "holdfast_label_sets_max") == 7
    assert (sample(text, "process_resident_memory_bytes") or 0) > 0


async def test_a_loop_that_is_held_up_is_seen_to_lag() -> None:
    clock = ManualClock()
    lag = LoopLag()
    measuring = asyncio.create_task(lag.measure_once(LoopRuntime(clock, alarm=clock)))
    await asyncio.sleep(0)
    clock.advance(EVERY_MS + 41)  # somebody blocks the loop
    assert await measuring == 40
    assert lag.take_highest_ms() == 40
    assert lag.take_highest_ms() == 0


def test_every_metric_is_declared_once_under_a_name_with_its_unit() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert family.name.startswith("holdfast_")
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert not family.name.endswith(("_ms", "_milliseconds", "_kb"))
        assert family.help.endswith(".")
        assert "\n" not in family.help
