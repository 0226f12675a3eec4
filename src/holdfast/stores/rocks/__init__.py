"""The embedded store on RocksDB: one writer, shared commits, the head of each queue in memory, the rest on disk."""

from holdfast.stores.rocks.store import RocksStore

__all__ = ["RocksStore"]
