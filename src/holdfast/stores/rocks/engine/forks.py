"""RocksDB in a forked child, where its threads do not exist and it does not know that.

All databases of a process share one pool of threads, which outlives them. In the child of a process that has opened a
database, flushes and compactions would wait forever for the pool's missing threads, and the pool's destructor would try
to join them and crash.
"""

import ctypes

from holdfast.forking import listen_for_forks
from holdfast.model.errors import StoreUnavailable


class _Pool:
    """The state of RocksDB's pool of threads in this process."""

    def __init__(self) -> None:
        # This process has started the pool.
        self.is_started = False
        # This process was forked from one that had started the pool.
        self.is_inherited = False
        listen_for_forks(self)

    def forked(self) -> None:
        if self.is_started:
            self.is_inherited = True
            _skip_destructors()


_pool = _Pool()


def check_rocksdb_works() -> None:
    """Raise `StoreUnavailable` if this process was forked from one that had opened a database for writing."""
    if _pool.is_inherited:
        raise StoreUnavailable(
            "this process was forked from one that had opened an embedded store, and RocksDB's threads do not survive "
            "a fork: open the first store after the fork, start children by multiprocessing's 'spawn', or let one "
            "process serve the store (`holdfast serve`)"
        )


def note_rocksdb_starts() -> None:
    """Record that a database is about to be opened for writing. From then on, forked children have a pool without
    threads."""
    _pool.is_started = True


def never_free(thing: object) -> None:
    """Keep an object from ever being freed, even at the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _skip_destructors() -> None:
    """Let the child end without the C++ destructors: RocksDB's would join the parent's threads.

    The exit handler that was registered last runs first. Without `on_exit` in the C library, children run the
    destructors.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        library.on_exit(library._exit, None)
