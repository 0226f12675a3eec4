"""Bounds for tests that are about something else than waiting: a busy machine may make any call wait for seconds."""

from holdfast.stores.postgres.cluster.connection_bounds import ConnectionBounds

PATIENT = ConnectionBounds(
    lock_timeout_ms=60_000, statement_timeout_ms=120_000, idle_transaction_ms=60_000, silence_ms=30_000
)
