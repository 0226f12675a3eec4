"""Read-only snapshots of databases, read row by row with server-side cursors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import asyncpg
from asyncpg import exceptions

from holdfast.model.errors import StoreUnavailable
from holdfast.model.invariants.damage import DamageKind
from holdfast.stores.findings import Findings
from holdfast.stores.postgres.cluster.database import LOST, PostgresDatabase, error_text, hide_password
from holdfast.stores.postgres.cluster.silence import SilenceWatch

T = TypeVar("T")

_CONNECT_S = 5.0
# The first row of a sorted cursor comes after the sort, which takes minutes in a large table.
_STATEMENT_S = 3_600.0
# Number of rows in memory at once.
_PAGE = 1_000

# For this transaction alone, so that a pooler in transaction mode does not keep them. Unlike servers, this reads whole
# tables, so that the planner may choose how.
_SETTINGS = (
    "SET LOCAL search_path TO holdfast",
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL idle_in_transaction_session_timeout = 0",
    "SET LOCAL lock_timeout = '10s'",
)
# A file of the database is damaged. The transaction can go on after a savepoint.
_UNREADABLE = (exceptions.DataCorruptedError, exceptions.IndexCorruptedError, exceptions.InternalServerError)


class Snapshot:
    """One database as it was at one moment."""

    def __init__(self, number: int, connection: Any, watch: SilenceWatch) -> None:
        self.number = number
        self._connection = connection
        self._watch = watch

    async def fetch(self, sql: str, *args: Any) -> list[Any]:
        """Return all rows of a statement, of which there are few."""
        return await self.watched(self._connection.fetch(sql, *args))

    async def value(self, sql: str, *args: Any) -> Any:
        """Return the first column of the first row; None without rows."""
        return await self.watched(self._connection.fetchval(sql, *args))

    def rows(self, sql: str, *args: Any) -> "RowStream":
        """Return the rows of a statement, of any number."""
        return RowStream(self, self._connection.cursor(sql, *args))

    async def watched(self, request: Awaitable[T]) -> T:
        """Wait for a request. It fails if the database gives no sign of life any more."""
        self._watch.begin()
        try:
            return await request
        finally:
            self._watch.end()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Release the locks on the tables that are read in this block at its end, and not only with the snapshot.

        A reader's lock stops nobody who reads or writes rows. But moving a slot, and changing the schema, need a table
        for themselves for a moment.
        """
        savepoint = self._connection.transaction()
        await self.watched(savepoint.start())
        try:
            yield
        finally:
            if not self._connection.is_closed():
                await self.watched(savepoint.rollback())

    async def guard(self, findings: Findings, what: str, check: Callable[[], Awaitable[None]]) -> None:
        """Run one check. If a damaged file of the database ends it, add that as a violation, so that the other checks
        still run."""
        try:
            async with self.reading():
                await check()
        except _UNREADABLE as error:
            findings.add(
                DamageKind.STORE_UNREADABLE,
                f"{what} of database {self.number} cannot be read to the end: {error_text(error)}; restore a backup",
            )


class RowStream:
    """The rows of a cursor, in pages. Call `fill` before each look at `head`."""

    def __init__(self, snapshot: Snapshot, unopened: Awaitable[Any]) -> None:
        self._snapshot = snapshot
        self._unopened = unopened
        self._cursor: Any = None
        self._page: list[Any] = []
        self._at = 0

    async def fill(self) -> bool:
        """Read the next page if the current one is used up. Return whether there is a head."""
        if self._at < len(self._page):
            return True
        if self._cursor is None:
            self._cursor = await self._snapshot.watched(self._unopened)
        self._page = await self._snapshot.watched(self._cursor.fetch(_PAGE))
        self._at = 0
        return bool(self._page)

    @property
    def head(self) -> Any:
        """The next row."""
        return self._page[self._at]

    def pop(self) -> Any:
        """Return the next row, and go on to the one after it."""
        row = self._page[self._at]
        self._at += 1
        return row

    async def __aiter__(self) -> AsyncIterator[Any]:
        while await self.fill():
            while self._at < len(self._page):
                yield self.pop()


@asynccontextmanager
async def open_snapshots(databases: Sequence[PostgresDatabase]) -> AsyncIterator[list[Snapshot]]:
    """Open a snapshot of each database, all at about the same moment. Raise `StoreUnavailable` if one does not respond
    or its connection is lost."""
    async with AsyncExitStack() as stack:
        connections = await asyncio.gather(*(_connect(each) for each in databases), return_exceptions=True)
        for connection in connections:
            if not isinstance(connection, BaseException):
                stack.callback(connection.terminate)
        for failure in connections:
            if isinstance(failure, BaseException):
                raise failure
        silences: list[StoreUnavailable] = []
        snapshots: list[Snapshot] = []
        for database, connection in zip(databases, connections, strict=True):
            watch = SilenceWatch(database.probe, partial(_cut, connection, silences), patience_s=database.patience_s)
            stack.push_async_callback(watch.close)
            snapshots.append(Snapshot(database.number, connection, watch))
        try:
            await asyncio.gather(
                *(each.watched(_begin(other)) for each, other in zip(snapshots, connections, strict=True))
            )
            yield snapshots
        except LOST as error:
            if silences:
                raise silences[0] from error
            raise StoreUnavailable(f"a database failed while it was read: {error_text(error)}; try again") from error


def _cut(connection: Any, silences: list[StoreUnavailable], error: StoreUnavailable) -> None:
    """End the requests of a database that gives no sign of life."""
    silences.append(error)
    connection.terminate()


async def _connect(database: PostgresDatabase) -> Any:
    try:
        return await asyncpg.connect(
            database.url,
            timeout=_CONNECT_S,
            command_timeout=_STATEMENT_S,
            # A pooler in transaction mode would give prepared statements to another connection.
            statement_cache_size=0,
            server_settings={"application_name": "holdfast verify"},
        )
    except (*LOST, exceptions.PostgresError, ValueError) as error:
        raise StoreUnavailable(f"cannot connect to {hide_password(database.url)}: {error_text(error)}") from error


async def _begin(connection: Any) -> None:
    """Begin the transaction, and take its snapshot with the first query."""
    await connection.transaction(isolation="repeatable_read", readonly=True).start()
    for setting in _SETTINGS:
        await connection.execute(setting)
    await connection.fetchval("SELECT 1")
