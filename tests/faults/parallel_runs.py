"""Independent runs, on every core when there are many of them."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

# With fewer, starting the interpreters takes longer than they save.
MANY = 10


def run_all(run: Callable[[In], Out], asked: Sequence[In]) -> Iterator[Out]:
    """Yield each result of `run`, in no particular order."""
    cores = len(os.sched_getaffinity(0))
    if len(asked) < MANY or cores == 1:
        yield from map(run, asked)
        return
    # Not forked: this process has open stores, which have threads.
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        yield from pool.imap_unordered(run, asked)
