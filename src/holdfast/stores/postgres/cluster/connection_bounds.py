"""The bounds of every wait on a database: for a connection, for a lock, for a statement, and for a stopped peer.

A server that stops in the middle of a transaction keeps its locks. The database ends such a transaction after
`idle_transaction_ms`, so that the locks are free again within 5 seconds; meanwhile other servers' calls give up after
`lock_timeout_ms`.
"""

import msgspec

# How long a database waits for a peer that takes no bytes and confirms none.
_PEER_SILENT_MS = 10_000
_KEEPALIVE = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "2"}
# A statement that the database does not cancel in time is given up this long after.
_CANCEL_MARGIN_S = 5.0


class ConnectionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one server's connections to one database."""

    # The number of connections.
    connections: int = 8
    # How long a statement waits for a lock that another transaction holds.
    lock_timeout_ms: int = 2_000
    # How long a statement may take, and how long a call waits for a connection.
    statement_timeout_ms: int = 30_000
    # How long a transaction may wait for its next statement: longer than a healthy server pauses within a transaction,
    # and, with the time until another server's next attempt, less than 5 seconds.
    idle_transaction_ms: int = 4_000
    # How long no call may end before the database is asked for a sign of life, and how long it has for that.
    silence_ms: int = 2_000

    def session_settings(self) -> dict[str, str]:
        """Return the settings of a session, by which the database keeps the bounds."""
        return {
            "lock_timeout": f"{self.lock_timeout_ms}ms",
            "statement_timeout": f"{self.statement_timeout_ms}ms",
            "idle_in_transaction_session_timeout": f"{self.idle_transaction_ms}ms",
            "tcp_user_timeout": f"{_PEER_SILENT_MS}ms",
            **_KEEPALIVE,
        }

    @property
    def command_s(self) -> float:
        """How long the driver waits for the end of a statement, in seconds."""
        return self.statement_timeout_ms / 1000 + _CANCEL_MARGIN_S

    @property
    def per_queue(self) -> int:
        """How many connections the calls of one queue may use at once. The others are for other queues."""
        return max(1, self.connections - 2)
