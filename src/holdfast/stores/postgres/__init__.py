"""Queues in PostgreSQL: one database or several, shared by any number of servers."""

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
