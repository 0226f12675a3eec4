"""A store of schema version 1, written once and kept as a fixture, is migrated and keeps all of its messages."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.schema.migrations import migrate, migrations, newest
from holdfast.testing import EmbeddedSubject
from holdfast.testing.clock import START_MS
from tests.postgres.bounds import PATIENT
from tests.postgres.server import PostgresServer

WEEK_MS = 7 * 86_400_000
ROWS = Path(__file__).with_name("schema_1.sql")


@pytest.fixture
async def url(postgres: PostgresServer) -> AsyncIterator[str]:
    """A database with the tables and the rows of schema version 1."""
    admin = await asyncpg.connect(postgres.url("postgres"))
    await admin.execute("DROP DATABASE IF EXISTS schema_one WITH (FORCE)")
    await admin.execute("CREATE DATABASE schema_one")
    old = await asyncpg.connect(postgres.url("schema_one"))
    first = migrations()[0]
    async with old.transaction():
        await old.execute("CREATE SCHEMA holdfast; SET LOCAL search_path TO holdfast")
        await old.execute(
            "CREATE TABLE migrations (version integer PRIMARY KEY, name text NOT NULL,"
            " applied_at timestamptz NOT NULL DEFAULT now())"
        )
        await old.execute(first.sql)
        await old.execute("INSERT INTO migrations (version, name) VALUES ($1, $2)", first.version, first.name)
        await old.execute(ROWS.read_text("utf-8"))
    await old.close()
    yield postgres.url("schema_one")
    await admin.execute("DROP DATABASE schema_one WITH (FORCE)")
    await admin.close()


@pytest.mark.spec("5.1")
async def test_a_store_of_schema_version_1_is_migrated_and_has_all_of_its_messages(url: str) -> None:
    connection = await asyncpg.connect(url)
    [applied] = await migrate([connection])
    await connection.close()
    assert applied.versions == list(range(2, newest() + 1))

    subject = EmbeddedSubject(
        lambda dice: PostgresStore([url], dice, journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True)
    )
    subject.clock.advance(1)
    async with subject.open() as hf:
        mail = hf.queue("mail", tenant="acme")
        stats = await mail.stats()
        assert (stats.ready, stats.delayed, stats.in_flight, stats.failed) == (7, 1, 1, 0)
        [delayed] = await mail.list("delayed", payload=True)
        assert (delayed.payload, delayed.visible_at) == (b'"delayed"', START_MS + 3_600_000)
        messages = {message.payload: message for message in await mail.claim(limit=20)}
        assert list(messages) == [
            *(b'"plain"', b"\x00bytes", b'"dying"', b'"keyed"', b'"grouped 1"', b'"grouped 2"', b'"with headers"')
        ]
        rich = messages[b'"with headers"']
        assert (rich.headers, rich.correlation_id) == ({"a": "b"}, "c-1")
        [again] = await mail.enqueue("keyed", key="k")
        assert (again.duplicate, str(again)) == (True, str(messages[b'"keyed"'].id))
        assert all(result.ok for result in await mail.ack(messages.values()))

        fed = hf.queue("fed", tenant="acme")
        assert [message.json() for message in await fed.claim(ledger=("consumer", 0))] == ["fed"]
        [dead] = await hf.queue("dead", tenant="acme").list("failed")
        assert dead.last_error == "broken"
        done = hf.queue("done", tenant="acme")
        assert [info.state for info in await done.list()] == ["succeeded"]
        assert [schedule.name for schedule in await done.schedules()] == ["nightly"]
        assert (await hf.tenant("acme").get()).quotas.max_messages == 100
        assert sum(event.event == "enqueued" for event in await hf.journal()) == 9 + 4
        subject.clock.advance(3_000_000)
        [held] = await hf.queue("states", tenant="acme").claim(state=True)
        assert (held.json(), held.state, held.attempt) == ("held with state", {"step": 1}, 2)
