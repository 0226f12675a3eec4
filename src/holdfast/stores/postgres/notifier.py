"""Wake-ups across servers: what one server's changes make possible is told to the others by NOTIFY.

It is sent after the change has committed, by a connection of its own: inside the transaction, PostgreSQL would let
only one notifying transaction commit at a time. So a server that dies in between tells nobody, and those who wait find
the message when they next look (`queue_poll_interval`).
"""

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.background import Backoff, run_forever, wait_for_event
from holdfast.clock import Clock
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase, connect, shown
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers

_CHANNEL = "holdfast"
_NAME = "holdfast bell"
# Whether anybody else listens to this database.
_PEERS = (
    f"SELECT count(*) > 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{_NAME}'"
)
# A payload has at most 8,000 bytes.
_LINES_BYTES = 7_500
_LONGEST_PAUSE_MS = 3_000
# How often a server looks whether there are others.
_LOOK_MS = 5_000

# Of a line in a payload: a schedule is due, not a queue.
_SCHEDULE = "*"

# Told that a claim on a queue may find something from a time on; without a queue, that a schedule is due then.
Heard = Callable[[QueueRef | None, int], None]


async def ring_for(connection: Any, ready: dict[QueueRef, int]) -> None:
    """By somebody who is no server: tell all of them."""
    notes = {str(ref): at_ms for ref, at_ms in ready.items()}
    while notes:
        lines = _take(notes)
        await connection.execute("SELECT pg_notify($1, $2)", _CHANNEL, "\n".join(["", *lines]))


def _take(notes: dict[str, int]) -> list[str]:
    """As many as one payload has room for, out of `notes`."""
    lines: list[str] = []
    size = 0
    while notes and size < _LINES_BYTES:
        name, at_ms = notes.popitem()
        lines.append(f"{name} {at_ms}")
        size += len(lines[-1]) + 1
    return lines


class Notifier:
    def __init__(self, cluster: PostgresCluster, nodes: PostgresNodeNumbers, heard: Heard) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._heard = heard
        self._ropes: list[_ListenConnection] = []

    def works(self, clock: Clock) -> list[Any]:
        """What is to run in the background, one for each database."""
        self._ropes = [_ListenConnection(shard, self._nodes, self._heard) for shard in self._cluster.shards]
        return [rope.run(clock) for rope in self._ropes]

    def ring(self, notices: Notices) -> None:
        """Soon; what is rung for while a note is on its way goes with the next."""
        for ref, at_ms in notices.ready_at.items():
            self._ropes[self._cluster.number_of(ref)].add(str(ref), at_ms)
        if notices.scheduled_at is not None:
            for rope in self._ropes:
                rope.add(_SCHEDULE, notices.scheduled_at)

    def has_peers(self) -> bool:
        return any(rope.has_peers for rope in self._ropes)


class _ListenConnection:
    """To one database: listens, and rings."""

    def __init__(self, shard: PostgresDatabase, nodes: PostgresNodeNumbers, heard: Heard) -> None:
        self._shard = shard
        self._nodes = nodes
        self._heard = heard
        self._notes: dict[str, int] = {}
        self._is_wanted = asyncio.Event()
        # Alone, a server has nobody to tell.
        self.has_peers = False
        self._backoff = Backoff("notifications", longest_ms=_LONGEST_PAUSE_MS, database=shown(shard.url))

    def add(self, name: str, at_ms: int) -> None:
        if self.has_peers:
            known = self._notes.get(name)
            self._notes[name] = at_ms if known is None else min(known, at_ms)
            self._is_wanted.set()

    async def run(self, clock: Clock) -> None:
        """Listen and notify until cancelled, over a new connection whenever one is lost."""
        await run_forever(lambda: self._serve_connection(clock), self._backoff, clock, lambda: asyncio.sleep(0))

    async def _serve_connection(self, clock: Clock) -> None:
        connection = None
        try:
            connection = await connect(self._shard.url, {"application_name": _NAME})
            await connection.add_listener(_CHANNEL, self._hear)
            await self._send(connection, [])  # the others learn that they are not alone any more
            self.has_peers = await connection.fetchval(_PEERS)
            self._backoff.succeeded()
            await self._ring(connection, clock)
        finally:
            if connection is not None:
                connection.terminate()

    async def _ring(self, connection: Any, clock: Clock) -> None:
        while True:
            if not await wait_for_event(clock, self._is_wanted, _LOOK_MS):
                self.has_peers = await connection.fetchval(_PEERS)
                continue
            while self._notes:
                await self._send(connection, _take(self._notes))
            self._is_wanted.clear()

    async def _send(self, connection: Any, lines: list[str]) -> None:
        await connection.execute("SELECT pg_notify($1, $2)", _CHANNEL, "\n".join([str(self._nodes.number), *lines]))

    def _hear(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        sender, *lines = payload.split("\n")
        if sender == str(self._nodes.number):
            return
        self.has_peers = True
        for line in lines:
            name, _, at = line.rpartition(" ")
            if name == _SCHEDULE:
                self._heard(None, int(at))
            else:
                tenant, _, queue = name.partition("/")
                self._heard(QueueRef(tenant, queue), int(at))
