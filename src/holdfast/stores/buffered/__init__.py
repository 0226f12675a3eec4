"""The fast path: enqueues are answered from a local log and Redis, and stored in bulk."""
