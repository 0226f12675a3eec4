"""`migrate --to`: nobody can claim a message in the new store before it could be claimed in the old one."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.testing import ManualClock
from tests.listing import listing_of
from tests.machinery.legacy.databases import LegacyWriter
from tests.pipeline.conftest import Run
from tests.postgres.server import PostgresServer
from tests.server.served import Served

HOUR_MS = 3_600_000


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's own zone must not move an instant."""
    monkeypatch.setenv("TZ", "America/St_Johns")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@contextmanager
def directory(tmp_path: Path, served: Served, postgres: PostgresServer) -> Iterator[str]:
    yield str(tmp_path / "new")


@contextmanager
def objects(tmp_path: Path, served: Served, postgres: PostgresServer) -> Iterator[str]:
    yield f"file://{tmp_path / 'objects'}"


@contextmanager
def server(tmp_path: Path, served: Served, postgres: PostgresServer) -> Iterator[str]:
    yield served.url


@contextmanager
def database(tmp_path: Path, served: Served, postgres: PostgresServer) -> Iterator[str]:
    urls = postgres.make_databases("migrate_leases")
    yield ",".join(urls)
    postgres.empty(urls)


def fill(queue: Any) -> dict[bytes, int]:
    """One message of each kind; the instant from which each payload can be claimed."""
    now_ms = SystemClock().now_ms()
    queue.enqueue([b"in flight", b"of a group"], group="g")
    [held, grouped] = queue.claim(2, lease=3_600)
    queue.enqueue(b"next of the group", group="g")
    [delayed] = queue.enqueue(b"delayed", deliver_at=now_ms + 2 * HOUR_MS)
    queue.enqueue(b"ready")
    return {
        b"in flight": held.lease_expires_at,
        b"of a group": grouped.lease_expires_at,
        b"next of the group": held.lease_expires_at,
        b"delayed": queue.get(delayed).visible_at,
        b"ready": now_ms,
    }


def check(queue: Any, due_at: dict[bytes, int]) -> None:
    """Against a store that has the copies."""
    found = {info.payload: info for info in queue.list(None, 100, payload=True)}
    assert found.keys() == due_at.keys()
    for payload in (b"in flight", b"of a group", b"delayed"):
        assert (found[payload].state, found[payload].visible_at) == ("ready", due_at[payload])
    [ready] = queue.claim(10)
    assert ready.payload == b"ready"
    ready.ack()


@pytest.mark.parametrize("place", [directory, objects, server, database])
def test_a_message_in_flight_cannot_be_claimed_in_the_new_store_before_its_lease_ends(
    spark: Any,
    run: Run,
    tmp_path: Path,
    served: Served,
    postgres: PostgresServer,
    queue_name: str,
    far_from_utc: None,
    place: Callable[..., Any],
) -> None:
    with holdfast.open(str(tmp_path / "old"), durability="os") as hf:
        due_at = fill(hf.queue(queue_name))
    with place(tmp_path, served, postgres) as url:
        code, out, err = run("migrate", "--url", tmp_path / "old", "--to", url, "--json")
        assert (code, json.loads(out)["found"]) == (0, {"in_flight": 2, "ready": 3}), err
        with holdfast.open(url) as hf:
            check(hf.queue(queue_name), due_at)


def test_the_lease_of_a_servers_message_goes_along_to_the_millisecond(
    spark: Any, run: Run, hf: holdfast.Holdfast, served: Served, queue_name: str, tmp_path: Path
) -> None:
    due_at = fill(hf.queue(queue_name))
    code, _, err = run("migrate", f"default/{queue_name}", "--url", served.url, "--to", tmp_path / "new")
    assert code == 0, err

    clock = ManualClock(due_at[b"in flight"] - 1)
    with holdfast.open(str(tmp_path / "new"), clock=clock, durability="os") as new:
        check(new.queue(queue_name), due_at)
        clock.advance(1)
        claimed = new.queue(queue_name).claim(10, lease=3 * 3_600)
        assert [message.payload for message in claimed] == [b"in flight", b"of a group", b"next of the group"]
        clock.advance(due_at[b"delayed"] - 1 - clock.now_ms())
        assert new.queue(queue_name).claim(10) == []
        clock.advance(1)
        assert [message.payload for message in new.queue(queue_name).claim(10)] == [b"delayed"]


def test_the_leases_and_delays_of_a_legacy_directory_go_along_and_it_is_not_written_to(
    spark: Any, run: Run, tmp_path: Path
) -> None:
    path, now_s = tmp_path / "old", SystemClock().now_ms() // 1_000
    writer = LegacyWriter(path, order="ItemIdKeyContents")
    writer.add(b"1", b"ready", now_s - 60)
    writer.add(b"2", b"delayed", now_s + 7_200)
    writer.add(b"3", b"never", 1 << 42)  # in a year beyond 9999
    writer.claim(b"held", {b"4": b"in flight"}, now_s + 3_600)
    writer.claim(b"over", {b"5": b"ended"}, now_s - 60)
    writer.close()
    (path / "rocksdict-config.json").unlink()
    before = listing_of(path)

    for arguments in (("--dry-run",), ("--dry-run", "--to", tmp_path / "new"), ("--to", tmp_path / "new")):
        code, out, err = run("migrate", "--url", path, *arguments)
        assert (code, "found 1 in_flight, 4 ready" in out) == (0, True), err
        assert "order of the fields id, visibility_ts_index_key, contents" in out
        assert listing_of(path) == before
    with holdfast.open(str(tmp_path / "new"), durability="os") as hf:
        found = {info.payload: info.visible_at for info in hf.queue().list(None, 100, payload=True)}
        assert found[b"delayed"] == (now_s + 7_200) * 1_000
        assert found[b"in flight"] == (now_s + 3_600) * 1_000
        assert sorted(message.payload for message in hf.queue().claim(10)) == [b"ended", b"ready"]


def test_a_legacy_directory_is_no_backup_for_spark_to_read_and_is_not_written_to(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "old"
    writer = LegacyWriter(path)
    writer.add(b"1", b"ready", 1)
    writer.close()
    before = listing_of(path)

    with pytest.raises(Exception, match="is not a store"):
        spark.read.format("holdfast").option("url", str(path)).load().collect()
    assert listing_of(path) == before
