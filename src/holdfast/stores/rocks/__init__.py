"""The embedded store on RocksDB: one writer, shared commits, the head of each queue in memory and the rest on disk.

Nothing here imports another store, and only one process at a time has a store open.
Start with `store.py`, then `shard.py`; `keys.py` has the layout of everything stored.
"""

from holdfast.stores.rocks.store import RocksStore

__all__ = ["RocksStore"]
