"""The jobs that move messages: counts agree, and what is run again adds nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.model.errors import InvalidArgument
from holdfast.model.names import QueueRef
from holdfast.pipeline.jobs.archive import archive, keep_payloads
from holdfast.pipeline.jobs.drain import drain
from holdfast.pipeline.jobs.failed_messages import read_opened_letters, read_source_letters, redrive, select, triage
from holdfast.pipeline.jobs.journals import OpenedJournal
from holdfast.pipeline.jobs.load import Format, load
from holdfast.pipeline.jobs.migrate import migrate, read_opened_snapshot, read_source_snapshot
from holdfast.pipeline.jobs.replay import replay
from holdfast.pipeline.jobs.replay import select as select_records
from holdfast.pipeline.jobs.targets import OpenedTarget, SinkTarget
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import PAYLOADS
from holdfast.testing import ManualClock
from tests.pipeline.journal_made import store
from tests.server.served import Served

pytestmark = pytest.mark.slow


def test_files_are_loaded_once_however_often_the_job_is_run(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    ref, target = QueueRef("acme", queue_name), SinkTarget({"url": served.url})
    rows = [{"order": n // 2, "who": "ann"} for n in range(20)]  # each row twice
    (tmp_path / "orders.json").write_text("\n".join(json.dumps(row) for row in rows))
    paths = [str(tmp_path / "orders.json")]

    assert load(spark, paths, ref, None, format=Format.JSON).rows == 20
    assert hf.queues("acme") == [] or queue_name not in {each.queue for each in hf.queues("acme")}
    first = load(spark, paths, ref, target, format=Format.JSON)
    again = load(spark.newSession(), paths, ref, target, format=Format.JSON)

    assert (first.rows, first.enqueued, first.known, first.is_sound) == (20, 20, 0, True)
    assert (again.rows, again.enqueued, again.known, again.is_sound) == (20, 0, 20, True)
    queue = hf.queue(queue_name, tenant="acme")
    assert sorted(message.json()["order"] for message in queue.claim(limit=100)) == [n // 2 for n in range(20)]
    by_key = load(spark, paths, QueueRef("acme", f"{queue_name}-keyed"), target, format=Format.JSON, key=["order"])
    assert (by_key.rows, by_key.enqueued) == (20, 10)
    with pytest.raises(InvalidArgument, match="'nothing' is not a column of these files; their columns are order, who"):
        load(spark, paths, ref, target, format=Format.JSON, key=["nothing"])


@pytest.mark.spec("9.10")
def test_dead_letters_are_triaged_and_a_cluster_of_them_redriven(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    def fail(opened: holdfast.Holdfast) -> None:
        queue = opened.queue(queue_name, tenant="acme")
        queue.enqueue([b"x"] * 9)
        for number, message in enumerate(queue.claim(limit=9)):
            message.nack(f"Timeout after {number} s" if number < 6 else f"no user {number}", final=True)

    fail(hf)
    letters = read_source_letters(spark, {"url": served.url}, "acme", queue_name)
    found = triage(letters)
    assert [(each.cluster, each.messages) for each in found] == [("Timeout after <n> s", 6), ("no user <n>", 3)]
    chosen = select(letters, cluster="Timeout after <n> s")
    assert redrive(chosen, hf, is_dry_run=True).matched == 6
    assert hf.queue(queue_name, tenant="acme").stats().failed == 9
    done = redrive(chosen, hf, rate_per_s=1_000)
    assert (done.matched, done.redriven, done.gone, done.is_sound) == (6, 6, 0, True)
    stats = hf.queue(queue_name, tenant="acme").stats()
    assert (stats.ready, stats.failed) == (6, 3)
    # Another run finds none of them left.
    assert redrive(chosen, hf).matched == 0

    with store(tmp_path / "store") as own:
        fail(own)
        assert [each.messages for each in triage(read_opened_letters(spark, own, "*", "*"))] == [6, 3]


@pytest.mark.spec("9.10")
def test_a_drained_queue_is_in_the_lake_and_can_be_replayed_from_it(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    lake, ref, options = Lake(str(tmp_path / "lake")), QueueRef("acme", queue_name), {"url": served.url}
    queue = hf.queue(queue_name, tenant="acme")
    sent = queue.enqueue([{"n": n} for n in range(30)], headers={"a": "b"}, priority=7)

    done = drain(spark, options, ref, lake, max_rows=20)

    assert (done.messages, done.is_sound) == (30, True)
    stats = queue.stats()
    assert (stats.ready, stats.in_flight) == (0, 0)
    assert sorted(row.id for row in lake.read(spark, PAYLOADS).collect()) == sorted(sent)
    # Nothing is left to drain; what comes later is drained by the same checkpoint.
    queue.enqueue(b"late")
    assert drain(spark, options, ref, lake).messages == 1
    archive(spark, OpenedJournal(hf), lake)

    selected = select_records(
        spark, lake, tenant="acme", queue=queue_name, where="priority = 7 and state = 'succeeded'"
    )
    dry = replay(spark, lake, selected, None)
    assert (dry.matched, dry.replayable, dry.enqueued) == (30, 30, 0)
    target = SinkTarget(options)
    first = replay(spark, lake, selected, target, into=f"{queue_name}-again")
    second = replay(spark, lake, selected, target, into=f"{queue_name}-again")

    assert (first.enqueued, first.known, second.enqueued, second.known) == (30, 0, 0, 30)
    back = hf.queue(f"{queue_name}-again", tenant="acme").claim(limit=100)
    assert sorted(message.json()["n"] for message in back) == list(range(30))
    assert {(message.priority, message.headers["a"]) for message in back} == {(7, "b")}
    future = select_records(spark, lake, queue=queue_name, since_ms=4_000_000_000_000)
    assert replay(spark, lake, future, None).matched == 0


@pytest.mark.spec("9.9")
def test_a_store_is_migrated_into_another_and_back_with_counts_that_agree(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    clock = ManualClock(1_900_000_000_000)
    with store(tmp_path / "store", clock) as own, store(tmp_path / "third", clock) as third:
        queue = own.queue(queue_name, tenant="acme")
        queue.enqueue([{"n": n} for n in range(12)], headers={"a": "b"}, group="g", correlation_id="c-1")
        queue.enqueue(b"\x00raw")
        own.queue(f"{queue_name}-2", tenant="acme").enqueue(b"failed")
        own.queue(f"{queue_name}-2", tenant="acme").claim()[0].nack("no", final=True)
        own.queue(f"{queue_name}-2", tenant="acme").enqueue([b"held", b"later"], delay=9)
        with read_opened_snapshot(spark, own) as snapshot:
            dry = migrate(snapshot, None)
            assert (dry.found, dry.copied, dry.left) == ({"ready": 15, "failed": 1}, 0, 1)
            first = migrate(snapshot, SinkTarget({"url": served.url}))
            again = migrate(snapshot, SinkTarget({"url": served.url}))
        assert (first.copied, first.known, first.left, first.is_sound) == (15, 0, 1, True)
        assert (again.copied, again.known, again.is_sound) == (0, 15, True)

        copied = hf.queue(queue_name, tenant="acme")
        info = copied.list(limit=100, payload=True)
        assert [json.loads(each.payload or b"") for each in info[:12]] == [{"n": n} for n in range(12)]
        assert info[12].payload == b"\x00raw"
        assert {each.headers["a"] for each in info[:12]} == {"b"}
        assert {(each.group, each.correlation_id) for each in info[:12]} == {("g", "c-1")}
        # And from the server into a store that only this process has open.
        back = migrate(read_source_snapshot(spark, {"url": served.url}, "acme", queue_name), OpenedTarget(third))
        assert (back.copied, back.is_sound) == (13, True)
        assert third.queue(queue_name, tenant="acme").stats().ready == 13

        lake = Lake(str(tmp_path / "lake"))
        with read_opened_snapshot(spark, own) as snapshot:
            assert keep_payloads(spark, snapshot, lake) == 16
            assert keep_payloads(spark, snapshot, lake) == 0
