"""A PostgreSQL store with rows of every kind, in one database or in two, and copies of it to damage."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import asyncpg

from holdfast import NewMessage
from holdfast.client.client import AsyncHoldfast
from holdfast.dice import Dice
from holdfast.stores.findings import Report
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.verify.store_check import verify_databases
from holdfast.testing import EmbeddedSubject, ManualClock
from tests.postgres.bounds import PATIENT
from tests.postgres.server import PostgresServer, run

WEEK_MS = 7 * 86_400_000
LARGE = b"x" * ((1 << 20) + 300_000)


@dataclass
class MadeStore:
    """The databases of the store, the ids of its messages by name, and the time that it is at."""

    urls: list[str]
    now_ms: int = 0
    ids: dict[str, int] = field(default_factory=dict)

    def verify(self) -> Report:
        return run(verify_databases(self.urls, ManualClock(self.now_ms), pause_ms=0, uses_caller_time=True))

    def damage(self, plant: "str | tuple[str, ...] | Callable[[MadeStore], None]") -> None:
        """Run a function, or statements on each database."""
        if callable(plant):
            plant(self)
            return
        for database in range(len(self.urls)):
            for statement in (plant,) if isinstance(plant, str) else plant:
                self.sql(statement, database=database)

    def sql(self, statement: str, *args: Any, database: int = 0) -> list[Any]:
        """Run a statement on a database. `{name}` stands for the id of a message."""
        return run(self._sql(statement, args, database))

    async def _sql(self, statement: str, args: Sequence[Any], database: int) -> list[Any]:
        connection = await asyncpg.connect(self.urls[database])
        try:
            await connection.execute("SET search_path TO holdfast")
            for name, id in self.ids.items():
                statement = statement.replace(f"{{{name}}}", str(id))
            rows: list[Any] = await connection.fetch(statement, *args)
            return rows
        finally:
            await connection.close()


def make_healthy(server: PostgresServer, *names: str) -> MadeStore:
    """Return a store on new databases. Nobody is connected to them afterwards, so that they can be copied."""
    made = MadeStore(server.make_databases(*names))
    asyncio.run(_fill(made))
    return made


def copy_made(server: PostgresServer, made: MadeStore, *names: str) -> MadeStore:
    """Return a copy of a store on new databases."""
    urls = run(_copy(server, made, names))
    return MadeStore(urls, made.now_ms, made.ids)


async def _copy(server: PostgresServer, made: MadeStore, names: Sequence[str]) -> list[str]:
    connection = await asyncpg.connect(server.url("postgres"))
    try:
        for url, name in zip(made.urls, names, strict=True):
            source = url.partition("@/")[2].partition("?")[0]
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}" STRATEGY FILE_COPY')
    finally:
        await connection.close()
    return [server.url(name) for name in names]


async def _fill(made: MadeStore) -> None:
    def make_store(dice: Dice) -> PostgresStore:
        return PostgresStore(made.urls, dice, journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True)

    subject = EmbeddedSubject(make_store)
    async with subject.open(max_payload=4 << 20) as hf:
        await hf.tenant("acme").set(quotas={"max_messages": 10_000})
        # The journal is only sure to have what came after its first events, and some time.
        old = hf.queue("old", tenant="acme")
        await old.enqueue([b"old"] * 120)
        subject.clock.advance(3_600_000)
        await _plain(subject, hf, made)
        await _grouped(hf, made)
        await _others(subject, hf, made)
        await subject.sweep(hf)
    made.now_ms = subject.clock.now_ms()


async def _plain(subject: EmbeddedSubject, hf: AsyncHoldfast, made: MadeStore) -> None:
    jobs = hf.queue("jobs", tenant="acme")
    await jobs.set_policy(keep_succeeded_ms=3_600_000)
    names = ["kept", "retried", "failed", "redriven", "expired", "released", "in flight"]
    for name in names:
        [id] = await jobs.enqueue({"name": name}, headers={"kind": name})
        made.ids[name] = id.snowflake
    claimed = {message.json()["name"]: message for message in await jobs.claim(limit=10, lease=5, state=True)}
    await claimed["in flight"].save_state({"page": 3})
    await claimed["in flight"].extend(7_200)
    await claimed["kept"].ack()
    await claimed["retried"].save_state({"tries": 1})
    await claimed["retried"].nack("not yet", delay=600)
    await claimed["failed"].nack("never", final=True)
    await claimed["redriven"].nack("later", final=True)
    await jobs.redrive({"error_contains": "later"})
    await claimed["released"].release()
    subject.clock.advance(5_001)
    await subject.sweep(hf)  # "expired" runs out
    for name, payload, options in (
        ("ready", b"ready", {}),
        ("urgent", b"urgent", {"priority": 1}),
        ("delayed", b"delayed", {"delay": 7_200}),
        ("ttl", b"ttl", {"ttl": 7_200}),
        ("keyed", b"keyed", {"key": "order-7", "correlation_id": "c-7"}),
        ("large", LARGE, {}),
        ("other large", LARGE + b"!", {}),
    ):
        [id] = await jobs.enqueue(payload, **cast("dict[str, Any]", options))
        made.ids[name] = id.snowflake
    await jobs.enqueue(b"keyed", key="order-7")
    [removed] = await jobs.enqueue(b"removed")
    await jobs.remove(removed)
    [claimed_and_unsent] = await jobs.claim(limit=1)
    await claimed_and_unsent.nack("again", delay=900)


async def _grouped(hf: AsyncHoldfast, made: MadeStore) -> None:
    grouped = hf.queue("grouped", tenant="acme")
    for group in ("idle", "busy"):
        for number, id in enumerate(await grouped.enqueue([b"0", b"1", b"2", b"3"], group=group, priority=50)):
            made.ids[f"{group} {number}"] = id.snowflake
    idle = await grouped.claim(limit=4)
    await grouped.claim(limit=2, lease=7_200)
    await idle[0].ack()
    for each in idle[1:]:
        await each.release()


async def _others(subject: EmbeddedSubject, hf: AsyncHoldfast, made: MadeStore) -> None:
    gone = hf.queue("gone", tenant="acme")
    await gone.enqueue([b"1", b"2"], delay=5)
    await gone.enqueue(b"3", key="left behind")
    await gone.delete(force_after=0)
    await subject.sweep(hf)
    other = hf.queue("other", tenant="globex")
    [first, second] = await other.enqueue([NewMessage(b"to move"), NewMessage(b"moved failed")])
    made.ids["moved"], made.ids["moved failed"] = first.snowflake, second.snowflake
    [_, failed] = await other.claim(limit=2)
    await failed.nack("broken", final=True)
    subject.clock.advance(6_000)
    await subject.sweep(hf)
    for state in ("ready", "failed"):
        await other.move("jobs", tenant="acme", state=state)
    [held] = await other.enqueue(b"held by a ledger")
    made.ids["ledger"] = held.snowflake
    await other.claim(limit=1, lease=7_200, ledger=("spark", 7))
    await other.ledger_ack("spark", 5)
    await other.schedule("nightly", cron="0 3 * * *", payload={"n": 1})
    await other.schedule("often", every="10m", payload={"n": 2})
