"""Each kind of damage that docs/verify.md lists is planted in each store, and found as the table says."""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.stores.check import verify_store
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.findings import Report
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import EmbeddedSubject
from tests.postgres.server import PostgresServer
from tests.redis.buffered import now_ms, put
from tests.redis.buffered import opened as buffered
from tests.redis.server import RedisServer
from tests.stores.objects.verify.test_verify import WEEK_MS, Lived, _live
from tests.stores.postgres.verify import made_store as postgres_store
from tests.stores.rocks.made_store import Damager, Made, copy_made, make_healthy
from tests.stores.verify.damage_table import STORES, read_table
from tests.stores.verify.objects_damage import OBJECTS_DAMAGE
from tests.stores.verify.postgres_damage import POSTGRES_CLUSTER_DAMAGE, POSTGRES_DAMAGE, POSTGRES_LOG_DAMAGE
from tests.stores.verify.rocks_damage import ROCKS_DAMAGE, ROCKS_SHARD_DAMAGE

TABLE = read_table()
EMBEDDED, OBJECTS, POSTGRES = STORES
PLANTED: Mapping[str, Mapping[str, Any]] = {
    EMBEDDED: {**ROCKS_DAMAGE, **ROCKS_SHARD_DAMAGE},
    OBJECTS: OBJECTS_DAMAGE,
    POSTGRES: {**POSTGRES_DAMAGE, **POSTGRES_CLUSTER_DAMAGE, **POSTGRES_LOG_DAMAGE},
}


# --- The table -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("4.8")
def test_the_table_has_forty_kinds_and_each_has_a_finding_in_some_store() -> None:
    assert len(TABLE) >= 40
    assert all(any(cell.findings for cell in cells.values()) for cells in TABLE.values())
    assert all(sum(bool(cells[store].findings) for cells in TABLE.values()) >= 40 for store in STORES)


@pytest.mark.parametrize("store", STORES)
def test_what_the_table_says_is_found_is_planted_and_nothing_else(store: str) -> None:
    assert {kind for kind, cells in TABLE.items() if cells[store].findings} == set(PLANTED[store])


def test_a_cell_without_a_finding_says_why() -> None:
    for cells in TABLE.values():
        for cell in cells.values():
            assert cell.findings or cell.reason.startswith(("Not possible:", "Cannot be told", "Not damage:"))


def test_each_name_of_a_finding_is_in_the_table() -> None:
    named = {name for cells in TABLE.values() for cell in cells.values() for name in cell.findings}
    assert named <= set(DamageKind)
    # Rules that the kinds of the table do not break first.
    assert set(DamageKind) - named <= {DamageKind.NAME_MISMATCH, DamageKind.STATE_DOCUMENT_VERSION}


def check(kind: str, store: str, report: Report) -> None:
    found = {violation.damage for violation in report.violations}
    assert found & set(TABLE[kind][store].findings), [str(each) for each in report.violations]
    assert report.violation_count >= len(report.violations) > 0


# --- The embedded store ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy_rocks(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_healthy(tmp_path_factory.mktemp("rocks") / "store")
    assert verify(made.path).violations == []
    return made


@pytest.mark.spec("4.8")
@pytest.mark.parametrize("kind", ROCKS_DAMAGE)
def test_the_embedded_store_finds(healthy_rocks: Made, tmp_path: Path, kind: str) -> None:
    made = copy_made(healthy_rocks, tmp_path / "store")
    damager = Damager(made)
    try:
        ROCKS_DAMAGE[kind](damager)
    finally:
        damager.close()

    check(kind, EMBEDDED, verify(made.path))


@pytest.mark.parametrize("kind", ROCKS_SHARD_DAMAGE)
def test_the_embedded_store_finds_in_two_shards(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    with holdfast.open(str(path), shards=2, durability="os") as hf:
        for number in range(8):
            hf.queue(f"q{number}", tenant="acme").enqueue(b"x")
    assert verify(path).violations == []

    ROCKS_SHARD_DAMAGE[kind](path)

    check(kind, EMBEDDED, verify(path))


# --- The object store ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy_objects(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    lived = Lived(tmp_path_factory.mktemp("objects") / "bucket")
    asyncio.run(_fill(lived))
    return lived


async def _fill(lived: Lived) -> None:
    bucket = DiskBucket(lived.root, syncs=False)
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS, watches=False))
    async with subject.open() as hf:
        await _live(hf, subject, lived)
        await hf.queue("mail", tenant="acme").enqueue(b"large" * 20_000)
        await hf.journal()
    lived.now_ms = subject.clock.now_ms()
    assert (await lived.verify()).violations == []


@pytest.mark.spec("4.8")
@pytest.mark.parametrize("kind", OBJECTS_DAMAGE)
async def test_the_object_store_finds(healthy_objects: Lived, tmp_path: Path, kind: str) -> None:
    lived = Lived(Path(shutil.copytree(healthy_objects.root, tmp_path / "bucket")))
    lived.now_ms, lived.ids = healthy_objects.now_ms, healthy_objects.ids

    await OBJECTS_DAMAGE[kind](lived)

    check(kind, OBJECTS, await lived.verify())


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_database(postgres: PostgresServer) -> postgres_store.MadeStore:
    made = postgres_store.make_healthy(postgres, "verify_one")
    assert made.verify().violations == []
    return made


@pytest.fixture(scope="module")
def two_databases(postgres: PostgresServer) -> postgres_store.MadeStore:
    made = postgres_store.make_healthy(postgres, "verify_a", "verify_b")
    assert made.verify().violations == []
    return made


@pytest.mark.spec("4.8")
@pytest.mark.parametrize("kind", POSTGRES_DAMAGE)
def test_postgres_finds(postgres: PostgresServer, one_database: postgres_store.MadeStore, kind: str) -> None:
    made = postgres_store.copy_made(postgres, one_database, "verify_copy")

    made.damage(POSTGRES_DAMAGE[kind])

    check(kind, POSTGRES, made.verify())


@pytest.mark.parametrize("kind", POSTGRES_CLUSTER_DAMAGE)
def test_postgres_finds_in_two_databases(
    postgres: PostgresServer, two_databases: postgres_store.MadeStore, kind: str
) -> None:
    made = postgres_store.copy_made(postgres, two_databases, "verify_copy_a", "verify_copy_b")

    made.damage(POSTGRES_CLUSTER_DAMAGE[kind])

    check(kind, POSTGRES, made.verify())


@pytest.mark.parametrize("kind", POSTGRES_LOG_DAMAGE)
async def test_postgres_finds_in_the_log_of_a_server(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path, kind: str
) -> None:
    urls = await asyncio.to_thread(postgres.make_databases, "verify_log_a", "verify_log_b")
    log, made = tmp_path / "log", postgres_store.MadeStore(urls)

    def verify_both(wal_dir: Path) -> Report:
        return verify_store(",".join(urls), wal_dirs=[str(wal_dir)])

    async with buffered(urls, redis_server.url, log) as store:
        for number in range(20):
            await put(store, b"x" * 100, ref=QueueRef("acme", f"q{number % 4}"))
        # Half of the queues land.
        for number in range(2):
            ref = QueueRef("acme", f"q{number}")
            await store.claim(ref, [ClaimRequest(limit=1)], now_ms())
        report = await asyncio.to_thread(verify_both, log)
        assert report.violations == []
        # The last call is decided by the next one.
        assert report.logged + report.messages in (19, 20)
        assert report.messages >= 10

        copy = Path(shutil.copytree(log, tmp_path / "copy"))
        await asyncio.to_thread(POSTGRES_LOG_DAMAGE[kind], made, copy)
        check(kind, POSTGRES, await asyncio.to_thread(verify_both, copy))
