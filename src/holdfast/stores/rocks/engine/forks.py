"""RocksDB in a forked child: its threads stayed in the parent, and it does not know.

All databases of a process share one pool of threads, which outlives them. In a child of a process that has opened a
database, flushes and compactions would wait for ever in a pool whose threads do not exist, and the pool's destructor
would join them and crash.
"""

import ctypes

from holdfast.forking import listen_for_forks
from holdfast.model.errors import StoreUnavailable


class _Pool:
    """Remembers whether RocksDB has started its threads, and in which process."""

    def __init__(self) -> None:
        self.is_started = False
        self.is_inherited = False
        listen_for_forks(self)

    def forked(self) -> None:
        if self.is_started:
            self.is_inherited = True
            _skip_destructors()


_pool = _Pool()


def check_rocksdb_works() -> None:
    """Raise StoreUnavailable in a child of a process that has opened a database for writing: no other would work."""
    if _pool.is_inherited:
        raise StoreUnavailable(
            "this process was forked from one that had opened an embedded store, and RocksDB's threads do not survive "
            "a fork: open the first store after the fork, start children by multiprocessing's 'spawn', or let one "
            "process serve the store (`holdfast serve`)"
        )


def note_rocksdb_starts() -> None:
    """Call when a database is about to be opened for writing: from then on children have a pool without threads."""
    _pool.is_started = True


def never_free(thing: object) -> None:
    """Keep an object beyond the end of the interpreter, which frees what modules hold."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _skip_destructors() -> None:
    """Let the child end without the C++ destructors, once Python has ended: RocksDB's joins the parent's threads.

    The last handler registered is the first to run. Where the C library has no `on_exit`, children end as they did.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        library.on_exit(library._exit, None)
