"""`db migrate` makes one store of several databases, however often it is killed and however many run at once."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.model.errors import InvalidArgument
from holdfast.stores.postgres.cluster.slots import SLOTS
from holdfast.stores.postgres.schema.migrations import Applied, migrate
from tests.postgres.server import PostgresServer, run

NAMES = ("member_a", "member_b")


class Killed(BaseException):
    """The process has ended."""


class Lives:
    """Counts statements, and ends the process after some of them: its connections are gone, and it does no more."""

    def __init__(self, after: int | None = None) -> None:
        self.statements = 0
        self._after = after
        self._connections: list[Any] = []

    def wrap(self, connection: Any) -> "MortalConnection":
        self._connections.append(connection)
        return MortalConnection(connection, self)

    def spend(self) -> None:
        self.statements += 1
        if self.statements == self._after:
            for connection in self._connections:
                connection.terminate()
            raise Killed


class MortalConnection:
    """A connection of a process that may end after each statement."""

    def __init__(self, connection: Any, lives: Lives) -> None:
        self._connection = connection
        self._lives = lives

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        result = await getattr(self._connection, name)(*args, **options)
        self._lives.spend()
        return result

    async def execute(self, *args: Any, **options: Any) -> Any:
        return await self._call("execute", *args, **options)

    async def fetch(self, *args: Any) -> Any:
        return await self._call("fetch", *args)

    async def fetchrow(self, *args: Any) -> Any:
        return await self._call("fetchrow", *args)

    async def fetchval(self, *args: Any) -> Any:
        return await self._call("fetchval", *args)

    def is_closed(self) -> bool:
        closed: bool = self._connection.is_closed()
        return closed

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            self._lives.spend()
            yield
        except BaseException:
            with suppress(asyncpg.InterfaceError, asyncpg.PostgresError):  # its connection is gone
                await transaction.rollback()
            raise
        await transaction.commit()
        self._lives.spend()


# --- Databases -------------------------------------------------------------------------------------------------------


def make_empty(server: PostgresServer, *names: str) -> list[str]:
    """New databases without tables."""
    run(_recreate(server, names, None))
    return [server.url(name) for name in names]


async def _recreate(server: PostgresServer, names: Sequence[str], template: str | None) -> None:
    connection = await asyncpg.connect(server.url("postgres"))
    try:
        for name in names:
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            await connection.execute(
                f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}" STRATEGY FILE_COPY' if template else "")
            )
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def template(postgres: PostgresServer) -> str:
    """A database with all tables that belongs to no store."""
    [url] = make_empty(postgres, "member_template")
    run(_migrated([url]))
    run(sql(url, "DELETE FROM holdfast.cluster; DELETE FROM holdfast.slots; DELETE FROM holdfast.members"))
    return "member_template"


@pytest.fixture
def urls(postgres: PostgresServer, template: str) -> Iterator[list[str]]:
    return make_unjoined(postgres, template, *NAMES)


def make_unjoined(server: PostgresServer, template: str, *names: str) -> list[str]:
    """New databases with all tables that belong to no store yet."""
    run(_recreate(server, names, template))
    urls = [server.url(name) for name in names]
    for url in urls:
        run(sql(url, "UPDATE holdfast.identity SET database_id = gen_random_uuid()"))
    return urls


async def sql(url: str, statement: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.execute(statement)
    finally:
        await connection.close()


async def _migrated(urls: Sequence[str], lives: Lives | None = None) -> list[Applied]:
    opened = [await asyncpg.connect(url) for url in urls]
    try:
        return await migrate([lives.wrap(each) for each in opened] if lives else list(opened))
    finally:
        for each in opened:
            each.terminate()


def check_good(urls: Sequence[str], databases: int) -> None:
    """One store of this many databases, which share all slots, and which a server can use."""
    numbers = [run(_numbers(url)) for url in urls]
    assert len({cluster_id for cluster_id, _, _ in numbers}) == 1
    assert sorted(shard for _, shard, _ in numbers) == list(range(databases))
    assert len({tuple(slots) for _, _, slots in numbers}) == 1
    with holdfast.open(",".join(urls)) as hf:
        for number in range(8):
            hf.queue(f"q{number}", tenant="acme").enqueue(b"x")
            [message] = hf.queue(f"q{number}", tenant="acme").claim()
            message.ack()


async def _numbers(url: str) -> tuple[Any, int, list[int]]:
    connection = await asyncpg.connect(url)
    try:
        row = await connection.fetchrow("SELECT cluster_id, shard FROM holdfast.cluster")
        slots = await connection.fetch("SELECT shard FROM holdfast.slots ORDER BY slot")
        assert len(slots) == SLOTS
        return row["cluster_id"], row["shard"], [each["shard"] for each in slots]
    finally:
        await connection.close()


# --- Kills -----------------------------------------------------------------------------------------------------------


def count_statements(urls: Sequence[str]) -> int:
    lives = Lives()
    run(_migrated(urls, lives))
    return lives.statements


def kill_and_repeat(urls: Sequence[str], after: int) -> None:
    """Kill a run, and let another one finish, with the databases in the other order."""
    with pytest.raises(Killed):
        run(_migrated(urls, Lives(after)))
    run(_migrated(urls[::-1]))
    check_good(urls, len(urls))


@pytest.mark.spec("5.1")
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.proof)])
def test_after_a_kill_at_any_statement_the_next_run_makes_one_good_store(
    postgres: PostgresServer, template: str, urls: list[str], step: int
) -> None:
    statements = count_statements(urls)
    assert statements > 30
    # The tables are there already. The test of new databases makes them too.
    for after in range(1, statements + 1, step):
        kill_and_repeat(make_unjoined(postgres, template, *NAMES), after)


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_new_databases_survive_a_kill(postgres: PostgresServer, part: float) -> None:
    statements = count_statements(make_empty(postgres, *NAMES))

    kill_and_repeat(make_empty(postgres, *NAMES), int(statements * part))


@pytest.mark.proof
def test_new_databases_survive_a_kill_after_each_statement(postgres: PostgresServer) -> None:
    for after in range(1, count_statements(make_empty(postgres, *NAMES)) + 1):
        kill_and_repeat(make_empty(postgres, *NAMES), after)


def test_two_kills_at_different_moments_leave_nothing_behind(
    postgres: PostgresServer, template: str, urls: list[str]
) -> None:
    for first, second in ((20, 15), (15, 25), (30, 30)):
        again = make_unjoined(postgres, template, *NAMES)
        for after in (first, second):
            with pytest.raises(Killed):
                run(_migrated(again, Lives(after)))
        run(_migrated(again))
        check_good(again, 2)


# --- Many at once ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("5.1")
@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.proof)])
def test_several_processes_at_once_with_the_databases_in_any_order_make_one_store(
    postgres: PostgresServer, times: int
) -> None:
    for _ in range(times):
        urls = make_empty(postgres, *NAMES)
        orders = [urls, urls[::-1], urls, urls[::-1]]
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "holdfast", "db", "migrate", "--store", ",".join(order)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for order in orders
        ]
        for each in running:
            _, errors = each.communicate()
            assert each.returncode == 0, errors
        check_good(urls, 2)


def test_many_tasks_at_once_with_overlapping_databases_make_one_store(postgres: PostgresServer, template: str) -> None:
    a, b, c = make_unjoined(postgres, template, "member_a", "member_b", "member_c")

    async def every() -> None:
        await asyncio.gather(*(_migrated(order) for order in ([a, b, c], [c, b, a], [b, c, a], [c, a, b])))

    run(every())

    check_good([a, b, c], 3)


# --- Joining ---------------------------------------------------------------------------------------------------------


def test_a_new_database_gets_a_number_that_none_has_even_if_the_last_one_is_left_out(
    postgres: PostgresServer, template: str, urls: list[str]
) -> None:
    c, d = make_unjoined(postgres, template, "member_c", "member_d")
    run(_migrated(urls))
    run(_migrated([*urls, c]))

    applied = run(_migrated([*urls, d]))

    assert [each.shard for each in applied] == [0, 1, 3]
    check_good([*urls, c, d], 4)


def test_a_join_that_was_killed_is_finished_with_the_same_number(
    postgres: PostgresServer, template: str, urls: list[str]
) -> None:
    run(_migrated(urls))
    [c] = make_unjoined(postgres, template, "member_c")
    statements = count_statements([*urls, *make_unjoined(postgres, template, "member_d")])
    for after in range(statements - 12, statements, 3):
        with suppress(Killed):
            run(_migrated([*urls, c], Lives(after)))

    shard = run(_migrated([c, *urls]))[0].shard

    assert shard == 3  # the one that was counted with has number 2
    assert run(_migrated([c, *urls]))[0].shard == 3


def test_a_store_of_an_older_version_gets_its_list(urls: list[str]) -> None:
    run(_migrated(urls))
    for url in urls:
        run(sql(url, "DELETE FROM holdfast.members"))

    run(_migrated(urls[::-1]))

    check_good(urls, 2)


def test_a_store_that_an_older_version_left_half_made_is_finished_unless_it_was_used(urls: list[str]) -> None:
    run(_migrated(urls))
    for url in urls:
        run(sql(url, "DELETE FROM holdfast.members"))
    run(sql(urls[1], "DELETE FROM holdfast.cluster; DELETE FROM holdfast.slots"))
    run(sql(urls[0], "INSERT INTO holdfast.nodes (node, ends_at) VALUES (0, now())"))
    with pytest.raises(InvalidArgument, match="number 1 was not given"):
        run(_migrated(urls))
    run(sql(urls[0], "DELETE FROM holdfast.nodes"))

    run(_migrated(urls))

    check_good(urls, 2)


# --- What is refused -------------------------------------------------------------------------------------------------


def test_databases_of_two_stores_are_refused(urls: list[str]) -> None:
    for url in urls:
        run(_migrated([url]))

    with pytest.raises(InvalidArgument, match="belong to different stores"):
        run(_migrated(urls))


def test_a_database_and_its_copy_are_refused_and_so_is_one_given_twice(
    postgres: PostgresServer, urls: list[str]
) -> None:
    run(_migrated([urls[0]]))
    run(_recreate(postgres, ["member_copy"], "member_a"))

    for second in (postgres.url("member_copy"), urls[0]):
        with pytest.raises(InvalidArgument, match="name each database of the store once"):
            run(_migrated([urls[0], second]))
