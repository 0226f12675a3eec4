"""A worker by name: `module:attribute`, as `holdfast worker` is given it."""

import importlib
import os
import sys
from functools import reduce

from holdfast.model.errors import InvalidArgument
from holdfast.worker.worker import Worker


def load_target(target: str) -> Worker:
    """Import the worker. The current directory is searched first, as for `python -m`."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InvalidArgument(f"{target[:80]!r} names no worker: give module:attribute, as in shop.jobs:worker")
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            # The module is there; a module that it imports is not.
            raise InvalidArgument(f"{module_name} cannot be imported: {error}") from error
        raise InvalidArgument(f"there is no module {module_name!r} here or among what is installed") from None
    try:
        found: object = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise InvalidArgument(f"module {module_name!r} has no attribute {name!r}") from None
    if not isinstance(found, Worker):
        raise InvalidArgument(f"{target} is a {type(found).__name__}, not a holdfast.Worker")
    return found


def run_target(target: str) -> None:
    """`holdfast worker module:attribute`: runs until a signal stops it."""
    load_target(target).run()
