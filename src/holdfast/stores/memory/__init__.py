"""The plainest reading of the contract: everything in memory, nothing kept."""

from holdfast.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
