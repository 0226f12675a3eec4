"""A PostgreSQL store by its URL: served, opened in a program, and made by the command line."""

import json
import subprocess
import sys

import asyncpg
import pytest

import holdfast
from holdfast.cli.inspection import tail
from tests.postgres.server import PostgresServer, run
from tests.server.served import Served


@pytest.fixture
def fresh(postgres: PostgresServer) -> list[str]:
    """Two databases with nothing in them."""

    async def make() -> None:
        admin = await asyncpg.connect(postgres.url("postgres"))
        for name in ("fresh_a", "fresh_b"):
            await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            await admin.execute(f"CREATE DATABASE {name}")
        await admin.close()

    run(make())
    return [postgres.url("fresh_a"), postgres.url("fresh_b")]


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.spec("5.1")
def test_the_command_line_makes_a_store_and_says_what_it_is(fresh: list[str]) -> None:
    store = ",".join(fresh)

    before = cli("db", "status", "--store", store, "--json")
    assert before.returncode == 3
    assert [json.loads(line)["version"] for line in before.stdout.splitlines()] == [0, 0]

    made = cli("db", "migrate", "--store", store, "--json")
    assert made.returncode == 0, made.stderr
    assert [json.loads(line)["slots"] for line in made.stdout.splitlines()] == [512, 512]
    assert "up to date" in cli("db", "migrate", "--store", store).stdout

    after = cli("db", "status", "--store", store, "--json")
    assert after.returncode == 0
    said = [json.loads(line) for line in after.stdout.splitlines()]
    assert [each["shard"] for each in said] == [0, 1]
    assert len({each["store"] for each in said}) == 1


@pytest.mark.spec("5.2")
def test_a_database_that_joins_a_store_owns_no_slots_yet(fresh: list[str]) -> None:
    assert cli("db", "migrate", "--store", fresh[0]).returncode == 0
    joined = cli("db", "migrate", "--store", ",".join(fresh), "--json")
    assert [json.loads(line)["slots"] for line in joined.stdout.splitlines()] == [1024, 0]
    status = cli("db", "status", "--store", ",".join(fresh))
    assert [("its even share is 512" in line) for line in status.stdout.splitlines()] == [False, True]


def test_what_is_not_a_postgres_url_is_refused(fresh: list[str]) -> None:
    for store in ("./data", "memory://", ""):
        refused = cli("db", "status", "--store", store)
        assert refused.returncode == 2
        assert "give --store postgres://" in refused.stderr


@pytest.mark.spec("10.1")
def test_a_program_opens_a_store_by_its_url(fresh: list[str]) -> None:
    assert cli("db", "migrate", "--store", ",".join(fresh)).returncode == 0
    with holdfast.open(",".join(fresh)) as hf:
        for number in range(6):
            hf.queue(f"q{number}").enqueue({"number": number}, key="once")
            hf.queue(f"q{number}").enqueue({"number": number}, key="once")
    # In any order: the databases know which of them they are.
    with holdfast.open(",".join(reversed(fresh))) as hf:
        for number in range(6):
            [message] = hf.queue(f"q{number}").claim(limit=2, wait=1, lease=30)
            with message:
                assert message.json() == {"number": number}
        assert all(stats.ready == stats.in_flight == 0 for stats in hf.queues())


@pytest.mark.parametrize("last", [0, 1, 7, 40, 41])
def test_the_last_events_of_two_databases_are_found(
    fresh: list[str], monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    monkeypatch.setattr(tail, "PAGE", 6)
    cli("db", "migrate", "--store", ",".join(fresh))
    with holdfast.open(",".join(fresh)) as hf:
        for number in range(40):
            hf.queue(f"q{number % 8}").enqueue(b"x")
        every = [event.id for event in hf.journal()]
        shown = [event.id for event in hf.journal(tail.start_of(hf, last, None))]

    assert len(every) == 40
    assert shown == every[max(0, 40 - last) :]


def test_one_database_of_two_is_not_taken_for_the_whole_store(fresh: list[str]) -> None:
    assert cli("db", "migrate", "--store", ",".join(fresh)).returncode == 0
    with pytest.raises(holdfast.InvalidArgument, match="number 1 was not given"), holdfast.open(fresh[0]):
        pass


@pytest.mark.spec("5.7")
@pytest.mark.slow
async def test_two_servers_serve_one_store(fresh: list[str]) -> None:
    store = ",".join(fresh)
    assert cli("db", "migrate", "--store", store).returncode == 0
    with Served("--store", store) as one, Served("--store", store) as other:
        sent = await one.call("/v1/queue/enqueue", {"queue": "q", "messages": [{"payload": n} for n in range(5)]})
        assert sent.status == 200
        taken = await other.call("/v1/queue/dequeue", {"queue": "q", "limit": 10, "lease_ms": 30_000})
        assert [each["payload"] for each in taken.json["messages"]] == [0, 1, 2, 3, 4]
        receipts = [each["receipt"] for each in taken.json["messages"]]
        acked = await one.call("/v1/queue/ack", {"queue": "q", "receipts": receipts})
        assert acked.status == 200
        async with holdfast.open_async(other.url) as hf:
            first = await hf.journal(limit=7)
            rest = await hf.journal(first.next)
        told = [(event.event, event.snowflake) for event in [*first, *rest]]
        sent_ids = [int(each["snowflake"]) for each in sent.json["messages"]]
        assert told == [(event, id) for event in ("enqueued", "claimed", "succeeded") for id in sent_ids]
        for server in (one, other):
            server.signal()
            assert server.end() == 0
