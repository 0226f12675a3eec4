"""Settings of a process that serves: its event loop, its garbage collector and its limit of open files."""

import asyncio
import gc
import resource
import sys
from collections.abc import Callable

_MOST_FILES = 65_536


def make_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop; None for asyncio's own."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def rest_garbage_collector() -> None:
    """Exclude the existing objects from garbage collection, and collect rarely.

    A call makes thousands of objects, and almost none of them are part of a cycle. By default Python looks for cycles
    after every 700 new objects, which costs a tenth of a server's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def raise_file_limit() -> None:
    """Allow more open files: every caller that waits holds a connection open, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
