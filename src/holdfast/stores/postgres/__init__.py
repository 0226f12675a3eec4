"""Queues in PostgreSQL: one database or several, shared by any number of servers.

Nothing here imports another store or knows a protocol.
Start reading at `store.py`, then `operations/`.
"""

# ruff: noqa: E402  (an error must name the extra before an import of one of its modules fails)

from holdfast.model.extras import require_extra

require_extra("postgres", "a PostgreSQL store")

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
