"""Wake-ups across servers: NOTIFY tells other servers about messages that their waiting claims may take.

A notification is sent after the change has committed, by a connection of its own: inside the transaction, PostgreSQL
would let only one notifying transaction commit at a time. A server that dies in between sends none, and waiting claims
then find the message when they next look (`queue_poll_interval`).
"""

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.background import Backoff, run_forever, wait_for_event
from holdfast.clock import Clock
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase, connect, hide_password
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers

_CHANNEL = "holdfast"
# The application name by which servers of all versions find one another: keep it.
_NAME = "holdfast bell"
# Whether another server listens to this database.
_PEERS = (
    f"SELECT count(*) > 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{_NAME}'"
)
# A payload has at most 8,000 bytes.
_LINES_BYTES = 7_500
_LONGEST_PAUSE_MS = 3_000
# The interval between two checks for other servers.
_LOOK_MS = 5_000

# The name in a payload's line that means a schedule, not a queue.
_SCHEDULE = "*"

# Called when a claim on a queue may find something from a time on; without a queue, when a schedule is due then.
OnNotification = Callable[[QueueRef | None, int], None]


async def notify_ready(connection: Any, ready: dict[QueueRef, int]) -> None:
    """Notify all servers, from a process that is no server itself."""
    pending = {str(ref): at_ms for ref, at_ms in ready.items()}
    while pending:
        lines = _take(pending)
        await connection.execute("SELECT pg_notify($1, $2)", _CHANNEL, "\n".join(["", *lines]))


def _take(pending: dict[str, int]) -> list[str]:
    """Remove and return as many lines as one payload has room for."""
    lines: list[str] = []
    size = 0
    while pending and size < _LINES_BYTES:
        name, at_ms = pending.popitem()
        lines.append(f"{name} {at_ms}")
        size += len(lines[-1]) + 1
    return lines


class Notifier:
    """Sends and receives notifications over all databases."""

    def __init__(self, cluster: PostgresCluster, nodes: PostgresNodeNumbers, on_notification: OnNotification) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._on_notification = on_notification
        self._connections: list[_ListenConnection] = []

    def loops(self, clock: Clock) -> list[Any]:
        """Return the background loops, one for each database."""
        self._connections = [
            _ListenConnection(shard, self._nodes, self._on_notification) for shard in self._cluster.shards
        ]
        return [connection.run(clock) for connection in self._connections]

    def notify(self, notices: Notices) -> None:
        """Notify the other servers soon. Changes that come while a notification is being sent go with the next one."""
        for ref, at_ms in notices.ready_at.items():
            self._connections[self._cluster.number_of(ref)].add(str(ref), at_ms)
        if notices.scheduled_at is not None:
            for connection in self._connections:
                connection.add(_SCHEDULE, notices.scheduled_at)

    def has_peers(self) -> bool:
        """Return whether another server listens to one of the databases."""
        return any(connection.has_peers for connection in self._connections)


class _ListenConnection:
    """A connection to one database that listens and notifies."""

    def __init__(self, shard: PostgresDatabase, nodes: PostgresNodeNumbers, on_notification: OnNotification) -> None:
        self._shard = shard
        self._nodes = nodes
        self._on_notification = on_notification
        self._pending: dict[str, int] = {}
        self._has_pending = asyncio.Event()
        # A server without peers sends nothing.
        self.has_peers = False
        self._backoff = Backoff("notifications", longest_ms=_LONGEST_PAUSE_MS, database=hide_password(shard.url))

    def add(self, name: str, at_ms: int) -> None:
        """Send this with the next notification, if another server listens."""
        if self.has_peers:
            known = self._pending.get(name)
            self._pending[name] = at_ms if known is None else min(known, at_ms)
            self._has_pending.set()

    async def run(self, clock: Clock) -> None:
        """Listen and notify until cancelled, over a new connection whenever one is lost."""
        await run_forever(lambda: self._serve_connection(clock), self._backoff, clock, lambda: asyncio.sleep(0))

    async def _serve_connection(self, clock: Clock) -> None:
        connection = None
        try:
            connection = await connect(self._shard.url, {"application_name": _NAME})
            await connection.add_listener(_CHANNEL, self._receive)
            await self._send(connection, [])  # tells the other servers that they have a peer
            self.has_peers = await connection.fetchval(_PEERS)
            self._backoff.succeeded()
            await self._notify_changes(connection, clock)
        finally:
            if connection is not None:
                connection.terminate()

    async def _notify_changes(self, connection: Any, clock: Clock) -> None:
        while True:
            if not await wait_for_event(clock, self._has_pending, _LOOK_MS):
                self.has_peers = await connection.fetchval(_PEERS)
                continue
            while self._pending:
                await self._send(connection, _take(self._pending))
            self._has_pending.clear()

    async def _send(self, connection: Any, lines: list[str]) -> None:
        await connection.execute("SELECT pg_notify($1, $2)", _CHANNEL, "\n".join([str(self._nodes.number), *lines]))

    def _receive(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        sender, *lines = payload.split("\n")
        if sender == str(self._nodes.number):
            return
        self.has_peers = True
        for line in lines:
            name, _, at = line.rpartition(" ")
            if name == _SCHEDULE:
                self._on_notification(None, int(at))
            else:
                tenant, _, queue = name.partition("/")
                self._on_notification(QueueRef(tenant, queue), int(at))
