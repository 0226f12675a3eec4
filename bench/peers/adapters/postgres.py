"""PostgreSQL as a queue, with its defaults, which sync before a commit returns: statements with SKIP LOCKED, sent by
hand, and SQL functions over a table for each queue with JSON messages, which is how pgmq is built.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import uvloop

from bench.http.servers import free_port
from bench.peers.contract import LEASE_S, Claimed, Client, Server, make_payload
from bench.peers.processes import ServerProcess, unprivileged_user
from tests.services import find_program

T = TypeVar("T")

_POLL_S = 0.002
_START_S = 60.0

_TABLE = """
CREATE TABLE {0} (
    msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    read_count int NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    visible_at timestamptz NOT NULL DEFAULT now(),
    message {1} NOT NULL
);
CREATE INDEX ON {0} (visible_at)
"""
_NOTIFY = """
CREATE OR REPLACE FUNCTION tell_waiting() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify(TG_TABLE_NAME, ''); RETURN NULL; END $$;
CREATE TRIGGER tell AFTER INSERT ON {0} FOR EACH STATEMENT EXECUTE FUNCTION tell_waiting()
"""
# Of the table {0}, up to {1} messages for {2} seconds. The limit stands in the text: for a parameter PostgreSQL would
# plan as if it were a tenth of the table.
_CLAIM = """
WITH ready AS (
    SELECT msg_id FROM {0} WHERE visible_at <= clock_timestamp() ORDER BY msg_id LIMIT {1} FOR UPDATE SKIP LOCKED
)
UPDATE {0} AS q SET visible_at = clock_timestamp() + make_interval(secs => {2}), read_count = read_count + 1
FROM ready WHERE q.msg_id = ready.msg_id RETURNING q.msg_id, q.message
"""
_FUNCTIONS = f"""
CREATE FUNCTION send(queue text, messages jsonb[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$ BEGIN
RETURN QUERY EXECUTE format('INSERT INTO %I (message) SELECT unnest($1) RETURNING msg_id', queue) USING messages;
END $$;
CREATE FUNCTION receive(queue text, seconds int, most int) RETURNS TABLE (msg_id bigint, message jsonb)
LANGUAGE plpgsql AS $$ BEGIN
RETURN QUERY EXECUTE format('{_CLAIM.format("%1$I", "$1", "$2")}', queue) USING most, seconds;
END $$;
CREATE FUNCTION remove(queue text, ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$ BEGIN
RETURN QUERY EXECUTE format('DELETE FROM %I WHERE msg_id = ANY($1) RETURNING msg_id', queue) USING ids;
END $$;
"""


class PostgresServer(Server):
    """A separate cluster, with room for the backlog in its memory and its log."""

    _message_type = "bytea"
    _filler = "'{0}'::bytea"

    def __init__(self, directory: Path) -> None:
        port, data, user = free_port(), directory / "data", unprivileged_user()
        self.address = f"postgres://bench@127.0.0.1:{port}/postgres"
        self._tables: list[str] = []
        if user:
            os.chown(directory, user["user"], user["group"])
        initdb = [find_program("initdb"), "-D", str(data), "-U", "bench", "--auth=trust", "--encoding=UTF8"]
        made = subprocess.run([*initdb, "--locale=C"], cwd=directory, capture_output=True, text=True, **user)
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "shared_buffers": "512MB",
            "max_wal_size": "4GB",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [find_program("postgres"), "-D", str(data), *options]
        # SIGTERM would wait for connections to end.
        self._process = ServerProcess(command, directory, port, stop=signal.SIGINT, **user)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self._execute("SELECT 1")
                return
            except (OSError, asyncpg.PostgresError):  # it listens before it lets clients in
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _execute(self, *statements: str) -> None:
        async def work() -> None:
            connection = await asyncpg.connect(self.address)
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(work())

    def pids(self) -> list[int]:
        return [self._process.pid]

    def reset(self, queues: list[str], *, notifies: bool) -> None:
        made = [_TABLE.format(queue, self._message_type) for queue in queues]
        self._execute(
            *(f"DROP TABLE {table}" for table in self._tables),
            *made,
            *(_NOTIFY.format(queue) for queue in queues if notifies),
        )
        self._tables = queues

    def fill(self, client: Client, queue: str, messages: int) -> None:
        filler = self._filler.format(make_payload().decode())
        rows = f"SELECT {filler} FROM generate_series(1, {messages})"
        self._execute(f"INSERT INTO {queue} (message) {rows}", f"ANALYZE {queue}")

    def close(self) -> None:
        self._process.stop()


class FunctionsServer(PostgresServer):
    _message_type = "jsonb"
    _filler = "jsonb_build_object('payload', '{0}')"

    def _prepare(self) -> None:
        super()._prepare()
        self._execute(_FUNCTIONS)

    def reset(self, queues: list[str], *, notifies: bool) -> None:
        super().reset(queues, notifies=False)


class SkipLockedClient(Client):
    """One connection, driven by a loop that runs for the length of each call."""

    def __init__(self, address: str, *, notifies: bool) -> None:
        self._loop = uvloop.new_event_loop()
        # Room for the statements of 1,000 queues.
        self._connection = self._run(asyncpg.connect(address, statement_cache_size=10_000))
        self._notifies = notifies
        self._listening = ""
        self._told = asyncio.Event()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def enqueue(self, queue: str, payloads: list[bytes]) -> None:
        if len(payloads) == 1:
            self._run(self._connection.execute(f"INSERT INTO {queue} (message) VALUES ($1)", payloads[0]))
        else:
            insert = f"INSERT INTO {queue} (message) SELECT unnest($1::bytea[])"
            self._run(self._connection.execute(insert, payloads))

    def claim(self, queue: str, limit: int, wait_s: float) -> list[Claimed]:
        return self._run(self._claim(queue, limit, wait_s))

    async def _claim(self, queue: str, limit: int, wait_s: float) -> list[Claimed]:
        if self._notifies and self._listening != queue:
            await self._connection.add_listener(queue, lambda *_: self._told.set())
            self._listening = queue
        deadline = time.monotonic() + wait_s
        while True:
            self._told.clear()
            found = await self._claim_now(queue, limit)
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            if self._notifies:
                await self._wait_to_be_told(left_s)
            else:
                await asyncio.sleep(_POLL_S)

    async def _wait_to_be_told(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._told.wait()

    async def _claim_now(self, queue: str, limit: int) -> list[Claimed]:
        rows: list[Claimed] = await self._connection.fetch(_CLAIM.format(queue, limit, LEASE_S))
        return rows

    def ack(self, queue: str, handles: list[Any]) -> None:
        self._run(self._connection.execute(f"DELETE FROM {queue} WHERE msg_id = ANY($1)", handles))

    def close(self) -> None:
        self._run(self._connection.close())
        self._loop.close()


class FunctionsClient(SkipLockedClient):
    """Polls while it waits: the functions notify nobody."""

    def __init__(self, address: str, *, notifies: bool) -> None:
        super().__init__(address, notifies=False)

    def enqueue(self, queue: str, payloads: list[bytes]) -> None:
        messages = [json.dumps({"payload": payload.decode()}) for payload in payloads]
        self._run(self._connection.fetch("SELECT send($1, $2)", queue, messages))

    async def _claim_now(self, queue: str, limit: int) -> list[Claimed]:
        rows = await self._connection.fetch("SELECT * FROM receive($1, $2, $3)", queue, LEASE_S, limit)
        return [(number, json.loads(message)["payload"].encode()) for number, message in rows]

    def ack(self, queue: str, handles: list[Any]) -> None:
        self._run(self._connection.fetch("SELECT remove($1, $2)", queue, handles))
