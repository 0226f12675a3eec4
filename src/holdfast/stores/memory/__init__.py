"""The memory store: the simplest implementation of the contract, and the reference for all other stores.

Nothing here is durable, and no step suspends.
Start with `store.py`; `unit.py` has the steps that the shared logic runs.
"""

from holdfast.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
