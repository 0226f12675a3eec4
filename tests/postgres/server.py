"""A PostgreSQL server of the tests' own: a new cluster in a temporary directory, reached by its socket alone."""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import asyncpg

from holdfast.stores.postgres.schema.migrations import migrate
from tests.services import find_program

_START_S = 60.0

# Its input ends with the process that runs the tests, however that ends: then the server goes too.
_GUARD = """
import os, shutil, signal, sys
sys.stdin.read()
os.kill(int(sys.argv[1]), signal.SIGQUIT)
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""

# Most tests leave little behind: to delete that is ten times as fast as to truncate every table. As a function on a
# connection that stays, for its plans are made once.
_TABLES = """
SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r'
AND relname NOT IN ('migrations', 'cluster', 'slots', 'identity', 'members')
"""
_EMPTY_ONE = """
DELETE FROM holdfast.{0};
IF pg_relation_size('holdfast.{0}') > 1000000 THEN TRUNCATE holdfast.{0}; END IF;
"""
# Without triggers: deleted counts would change the usage of tenants that are gone already.
_EMPTY = (
    "CREATE FUNCTION pg_temp.empty_store() RETURNS void LANGUAGE plpgsql SET session_replication_role = replica "
    "AS $$ BEGIN {} END $$"
)


def _owner() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it runs as another user."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise RuntimeError("the tests run as root and there is no user `postgres` or `nobody` to run PostgreSQL as")


class PostgresServer:
    """`fsync` is off but for tests of durability: a killed server loses nothing without it either."""

    def __init__(self, *, fsync: bool = False, settings: dict[str, str] | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._owner = _owner()
        if self._owner:
            os.chown(self.path, self._owner["user"], self._owner["group"])
        self._settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.path),
            "fsync": "on" if fsync else "off",
            "shared_buffers": "64MB",
            "max_connections": "200",
            "max_wal_size": "1GB",
            "log_min_messages": "fatal",
            **(settings or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._emptying = asyncio.new_event_loop()
        self._emptiers: dict[str, Any] = {}
        self._initialise()

    def _initialise(self) -> None:
        done = subprocess.run(
            [
                *(find_program("initdb"), "-D", str(self.path / "data"), "-U", "holdfast"),
                *("--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"),
            ],
            cwd=self.path,
            capture_output=True,
            text=True,
            **self._owner,
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr}")

    def start(self) -> None:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        log = (self.path / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [find_program("postgres"), "-D", str(self.path / "data"), *options],
                cwd=self.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._owner,
            )
        self._guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD, str(self.process.pid), str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                run(self._hello())
                return
            except (OSError, asyncpg.PostgresError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {(self.path / 'log').read_text()}") from None
                time.sleep(0.05)

    async def _hello(self) -> None:
        connection = await asyncpg.connect(self.url("postgres"))
        await connection.close()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """By its own id. SIGINT: fast; SIGQUIT: immediately, as a crash."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def close(self) -> None:
        for connection in self._emptiers.values():
            self._emptying.run_until_complete(_end(connection))
        self._emptying.close()
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.path, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgres://holdfast@/{database}?host={self.path}"

    def make_databases(self, *names: str) -> list[str]:
        """The databases of a new store."""
        return run(self._make_databases(names))

    async def _make_databases(self, names: tuple[str, ...]) -> list[str]:
        connection = await asyncpg.connect(self.url("postgres"))
        try:
            for name in names:
                await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
                await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()
        opened = [await asyncpg.connect(self.url(name)) for name in names]
        try:
            await migrate(opened)
        finally:
            for each in opened:
                await each.close()
        return [self.url(name) for name in names]

    def empty(self, urls: list[str]) -> None:
        """Databases of a store, as they were when they were made."""
        for url in urls:
            try:
                self._emptying.run_until_complete(self._empty(url))
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # it was restarted, or made again
                self._emptying.run_until_complete(_end(self._emptiers.pop(url)))
                self._emptying.run_until_complete(self._empty(url))

    async def _empty(self, url: str) -> None:
        connection = self._emptiers.get(url)
        if connection is None:
            connection = self._emptiers[url] = await asyncpg.connect(url)
            tables = [row["relname"] for row in await connection.fetch(_TABLES)]
            await connection.execute(_EMPTY.format("".join(map(_EMPTY_ONE.format, tables))))
        await connection.execute("SELECT pg_temp.empty_store()")


async def _end(connection: Any) -> None:
    connection.terminate()
    await asyncio.sleep(0)  # its socket is closed in the next turn


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a separate loop, in any thread, because fixtures run beside a test's loop."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
