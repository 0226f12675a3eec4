"""`verify` of a PostgreSQL store while servers are at work, with a role that only reads, and in nobody's way."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.model.errors import Forbidden, InvalidArgument, StoreUnavailable
from holdfast.stores.findings import Report
from holdfast.stores.postgres.cluster.resharding import reshard
from holdfast.stores.postgres.cluster.slots import slot_of
from holdfast.stores.postgres.verify.store_check import verify, verify_databases
from tests.postgres.server import PostgresServer, run
from tests.redis.server import RedisServer
from tests.stores.postgres.test_bounded_waits import processes_of
from tests.stores.postgres.verify.made_store import MadeStore, make_healthy

ROUNDS = 6


@pytest.fixture
def urls(postgres: PostgresServer) -> Iterator[list[str]]:
    return postgres.make_databases("verify_live_a", "verify_live_b")


async def check(urls: list[str]) -> Report:
    return await verify_databases(urls, SystemClock(), pause_ms=50)


async def work(hf: holdfast.AsyncHoldfast, name: str, until: asyncio.Event) -> None:
    """Enqueue, claim, settle and move until the event is set."""
    one, other = hf.queue(f"{name}-one", tenant="acme"), hf.queue(f"{name}-two", tenant="acme")
    number = 0
    while not until.is_set():
        number += 1
        await one.enqueue([f"{number}-{each}" for each in range(5)], key=None)
        await one.enqueue(number, key=f"{name}-{number}", group=f"g{number % 3}")
        claimed = await one.claim(limit=4, state=True)
        for message in claimed[:1]:
            await message.save_state({"number": number})
        await one.nack(claimed[:1], "again", delay=0)
        await one.ack(claimed[1:2])
        await one.release(claimed[2:3])
        await one.move(other.ref.queue, tenant="acme")
        moved = await other.claim(limit=10)
        await other.nack(moved[:1], "no", final=True)
        await other.ack(moved[1:])
        await other.redrive()


@asynccontextmanager
async def at_work(hf: holdfast.AsyncHoldfast, workers: int = 3) -> AsyncIterator[None]:
    await hf.tenant("acme").set(quotas={"max_messages": 100_000, "max_bytes": 100_000_000})
    until = asyncio.Event()
    tasks = [asyncio.create_task(work(hf, f"w{number}", until)) for number in range(workers)]
    try:
        yield
    finally:
        until.set()
        await asyncio.gather(*tasks)


async def has_events(hf: holdfast.AsyncHoldfast) -> None:
    """Wait until the work has begun to show."""
    while not await hf.journal(limit=1):
        await asyncio.sleep(0.01)


@pytest.mark.spec("4.8")
async def test_a_store_in_use_is_clean_at_every_moment(urls: list[str]) -> None:
    async with holdfast.open_async(",".join(urls)) as hf, at_work(hf):
        await has_events(hf)
        reports = [await check(urls) for _ in range(ROUNDS)]

    assert [str(each) for report in reports for each in report.violations] == []
    assert reports[-1].events > reports[0].events > 0
    async with holdfast.open_async(",".join(urls)) as hf:
        stats = await hf.tenant("acme").stats()
        report = await check(urls)
    assert report.violations == []
    # Leases may have ended in between.
    assert report.messages == stats.ready + stats.delayed + stats.in_flight + stats.failed
    assert report.bytes == stats.bytes


async def test_a_store_with_the_fast_path_is_clean_at_every_moment(
    urls: list[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = {"redis_url": redis_server.url, "wal_dir": str(tmp_path)}
    async with holdfast.open_async(",".join(urls), **settings) as hf, at_work(hf):
        await has_events(hf)
        reports = [await check(urls) for _ in range(ROUNDS)]

    assert [str(each) for report in reports for each in report.violations] == []
    assert reports[-1].events > reports[0].events > 0


async def test_a_store_whose_slots_move_is_clean_and_verify_does_not_stop_them(urls: list[str]) -> None:
    async with holdfast.open_async(",".join(urls), max_payload=4 << 20) as hf:
        queue = hf.queue("mail", tenant="acme")
        await queue.enqueue([b"x"] * 500)
        await queue.enqueue(b"y" * (3 << 20))
        slot, moves = slot_of("acme", "mail"), asyncio.Event()

        async def move() -> None:
            for number in range(4):
                await asyncio.to_thread(reshard, urls, {slot: number % 2})
            moves.set()

        moving = asyncio.create_task(move())
        reports = []
        while not moves.is_set() and not moving.done():
            reports.append(await check(urls))
        await moving
        reports.append(await check(urls))

    assert [str(each) for report in reports for each in report.violations] == []
    assert reports[-1].ready == 501


async def test_a_slot_moves_while_one_verify_is_under_way(postgres: PostgresServer) -> None:
    """A reader's lock on the table of queues would stop it for as long as verify takes."""
    made = await asyncio.to_thread(make_healthy, postgres, "verify_lock_a", "verify_lock_b")
    moved: list[object] = []

    def progress(what: str, done: int, total: int) -> None:
        if what == "messages" and not moved:
            moved.append(None)
            with ThreadPoolExecutor() as threads:  # this thread has a loop, and `reshard` runs one of its own
                for target in (0, 1):
                    threads.submit(reshard, made.urls, {slot_of("acme", "old"): target}).result()

    report = await asyncio.to_thread(verify, made.urls, progress)

    assert moved
    assert report.violations == []


# --- Roles -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(postgres: PostgresServer) -> MadeStore:
    return make_healthy(postgres, "verify_role")


def as_role(made: MadeStore, name: str) -> list[str]:
    return [url.replace("holdfast@", f"{name}@") for url in made.urls]


def contents(made: MadeStore) -> dict[str, Any]:
    tables = made.sql("SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r'")
    return {
        row["relname"]: made.sql(
            f"SELECT md5(coalesce(string_agg(t::text, ' ' ORDER BY t::text), '')) FROM {row['relname']} AS t"
        )
        for row in tables
    }


def test_a_role_that_only_reads_is_enough_and_nothing_changes(made: MadeStore) -> None:
    made.sql("CREATE ROLE reader LOGIN")
    try:
        with pytest.raises(Forbidden, match="grant it USAGE on the schema holdfast and SELECT"):
            run(verify_databases(as_role(made, "reader"), SystemClock()))
        made.sql("GRANT USAGE ON SCHEMA holdfast TO reader")
        made.sql("GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO reader")
        before = contents(made)

        report = run(verify_databases(as_role(made, "reader"), SystemClock()))

        assert contents(made) == before
    finally:
        made.sql("DROP OWNED BY reader")
        made.sql("DROP ROLE reader")
    assert report.violations == []
    assert report.ready > 100


# --- What is refused -------------------------------------------------------------------------------------------------


def test_a_list_that_leaves_a_database_out_is_refused(urls: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="was not given"):
        verify(urls[:1])


def test_a_database_that_is_down_is_named(urls: list[str]) -> None:
    gone = urls[1].replace("verify_live_b", "nowhere")
    with pytest.raises(StoreUnavailable, match="nowhere"):
        verify([urls[0], gone])


def test_a_database_without_a_store_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable, match="holdfast db migrate"):
        verify([postgres.url("postgres")])


def test_a_damaged_file_ends_its_own_check_only() -> None:
    """The header of the first page of the table of messages is overwritten."""
    server = PostgresServer()
    try:
        server.start()
        made = make_healthy(server, "verify_file")
        [row] = made.sql("SELECT pg_relation_filepath('items') AS path")
        made.sql("DELETE FROM ledger_ends")
        made.sql("UPDATE ledgers SET receipts = ''")
        server.stop(signal.SIGINT)
        with (server.path / "data" / row["path"]).open("r+b") as file:
            file.write(b"\xff" * 64)
        server.start()

        violations = [str(each) for each in made.verify().violations]
    finally:
        server.close()

    assert any("the messages of database 0 cannot be read to the end" in each for each in violations)
    assert any("[ledger-unreadable]" in each for each in violations)


def test_progress_is_reported(made: MadeStore) -> None:
    told: dict[str, int] = {}

    def progress(what: str, done: int, total: int) -> None:
        assert done <= total
        told[what] = done

    report = run(verify_databases(made.urls, SystemClock(), progress))

    assert told["messages"] == report.messages > 100
    assert told["journal"] == report.events > 100
    assert told["payloads"] == 2


def test_a_database_that_falls_silent_ends_verify() -> None:
    """Every process of its server is stopped, as by a cut network: nothing answers, and nothing refuses."""
    server = PostgresServer()
    stopped: list[int] = []

    def progress(what: str, done: int, total: int) -> None:
        if not stopped:
            stopped.extend(processes_of(server))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)

    try:
        server.start()
        made = make_healthy(server, "verify_silent")
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match="gives no sign of life"):
            verify(made.urls, progress)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        server.close()
    assert time.monotonic() - began_s < 30
