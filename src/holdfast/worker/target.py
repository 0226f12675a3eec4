"""Load and run a worker by its name, `module:attribute`."""

import importlib
import os
import sys
from functools import reduce

from holdfast.model.errors import InvalidArgument
from holdfast.worker.worker import Worker


def load_target(target: str) -> Worker:
    """Return the worker that `module:attribute` names. Raise `InvalidArgument` if there is none.

    The module is imported; the current directory is searched first, as for `python -m`.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InvalidArgument(f"{target[:80]!r} is not a worker's name; give module:attribute, as in shop.jobs:worker")
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            # The module exists, but a module that it imports does not.
            raise InvalidArgument(f"{module_name} cannot be imported: {error}") from error
        raise InvalidArgument(
            f"module {module_name!r} was found neither in the current directory nor among the installed packages"
        ) from None
    try:
        found: object = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise InvalidArgument(f"module {module_name!r} has no attribute {name!r}") from None
    if not isinstance(found, Worker):
        raise InvalidArgument(f"{target} is a {type(found).__name__}, not a holdfast.Worker")
    return found


def run_target(target: str) -> None:
    """Run the worker that `module:attribute` names until a signal stops it, as `holdfast worker` does."""
    load_target(target).run()
