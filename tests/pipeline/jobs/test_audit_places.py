"""An audit reaches every kind of store: a server, databases, a directory of objects."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import EVENTS
from tests.pipeline.conftest import Run
from tests.pipeline.journal_made import frame_of, journal_of
from tests.postgres.server import PostgresServer
from tests.server.served import Served

# A payload of an object of its own in an object store.
LARGE = b"x" * (17 << 10)


@contextmanager
def of_server(tmp_path: Path, postgres: PostgresServer) -> Iterator[str]:
    with Served("--data", tmp_path / "data", "--durability", "os") as served:
        yield served.url


@contextmanager
def of_databases(tmp_path: Path, postgres: PostgresServer) -> Iterator[str]:
    urls = postgres.make_databases("audit_place_a", "audit_place_b")
    yield ",".join(urls)
    postgres.empty(urls)


@pytest.mark.parametrize("place", [of_server, of_databases])
def test_a_lake_is_held_against_a_server_or_databases_message_by_message(
    spark: Any, run: Run, postgres: PostgresServer, tmp_path: Path, place: Any
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    with place(tmp_path, postgres) as url, holdfast.open(url) as hf:
        queue = hf.queue("mail", tenant="acme")
        queue.enqueue([b"x"] * 3)
        queue.claim()[0].ack()
        lake.append(spark, EVENTS, frame_of(spark, journal_of(hf)))

        code, out, err = run("audit", "--lake", lake.url, "--against", url, "--json")
        assert (code, json.loads(out)["broken"]) == (0, {}), err

        hf.queue("other", tenant="acme").enqueue(b"nobody archived it")
        queue.claim()[0].ack()  # nor that it is gone
        code, out, err = run("audit", "--lake", lake.url, "--against", url, "--json")
        assert (code, json.loads(out)["broken"]) == (4, {"lost": 1, "unrecorded": 1}), err


@pytest.mark.spec("9.8")
def test_an_object_store_is_audited_by_its_url_and_what_is_damaged_is_named(
    spark: Any, run: Run, tmp_path: Path
) -> None:
    urls = [f"file://{tmp_path / name}" for name in ("clean", "damaged")]
    for url in urls:
        with holdfast.open(url) as hf:
            queue = hf.queue("mail", tenant="acme")
            queue.enqueue([LARGE] * 3)
            queue.claim()[0].ack()

    code, out, err = run("audit", "--store", urls[0], "--store", urls[1], "--json")
    told = json.loads(out)
    assert (code, told["broken"], told["stores"], told["events"]) == (0, {}, 2, 10), err

    payload = next(path for path in (tmp_path / "damaged").rglob("*") if path.is_file() and path.read_bytes() == LARGE)
    payload.unlink()
    code, out, err = run("audit", "--store", urls[0], "--store", urls[1])
    assert code == 4, err
    assert f"{urls[1]}: " in out
    assert urls[0] not in out


def test_a_place_that_no_audit_can_read_is_refused_by_name(spark: Any, run: Run, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    with holdfast.open("memory://") as hf:
        hf.queue("q").enqueue(b"x")
        lake.append(spark, EVENTS, frame_of(spark, journal_of(hf)))
    code, _, err = run("audit", "--lake", lake.url, "--against", "redis://localhost")
    assert (code != 0, "redis://localhost" in err) == (True, True), err
