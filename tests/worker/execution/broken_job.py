"""A module that only the worker's own process can import."""

import multiprocessing

if multiprocessing.parent_process() is not None:
    raise RuntimeError("this module does not like children")


def work() -> None: ...
