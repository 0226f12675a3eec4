"""`holdfast verify` for PostgreSQL: every invariant of a store, checked in read-only snapshots of its databases.

Nothing here writes, or takes a lock that a server waits for.
Start with `store_check.py`, which calls the other checks in order.
"""
