"""The fast path: enqueues are answered from a local log and Redis, and stored in bulk."""

from holdfast.stores.buffered.path import Terms
from holdfast.stores.buffered.store import BufferedStore

__all__ = ["BufferedStore", "Terms"]
