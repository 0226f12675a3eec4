"""Short tracebacks: our errors show the called method and none of the frames below it."""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

from holdfast.model.errors import HoldfastError, Internal

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

# The program also calls the methods that enter and leave a `with` block.
_SPECIAL = frozenset({"__aenter__", "__aexit__", "__enter__", "__exit__"})


def raises_plainly(cls: C) -> C:
    """Let the public methods of a class raise our errors with one frame of ours in the traceback.

    Set HOLDFAST_DEBUG to keep every frame. An `Internal` error always keeps them, for it is a bug to report.
    """
    for name, method in list(vars(cls).items()):
        if (name in _SPECIAL or not name.startswith("_")) and inspect.isfunction(method):
            setattr(cls, name, raising_plainly(method))
    return cls


def raising_plainly(method: F) -> F:
    """Let one function raise our errors with one frame of ours in the traceback."""
    return cast(F, _wrapped(method))


def untrimmed(method: F) -> F:
    """Return the undecorated method, for callers that trim tracebacks themselves, so that no call pays for it twice."""
    return cast(F, getattr(method, "__wrapped__", method))


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    # A generator's frames run in the caller's loop, so its errors already show one frame.
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        return method
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(*args: Any, **named: Any) -> Any:
            try:
                return await method(*args, **named)
            except HoldfastError as error:
                if not _is_trimmed(error):
                    raise
                raise error.with_traceback(None) from error.__cause__

        return call_async

    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except HoldfastError as error:
            if not _is_trimmed(error):
                raise
            raise error.with_traceback(None) from error.__cause__

    return call


def _is_trimmed(error: HoldfastError) -> bool:
    if isinstance(error, Internal) or os.environ.get("HOLDFAST_DEBUG"):
        return False
    return _is_ours(error.__traceback__)


def _is_ours(traceback: TracebackType | None) -> bool:
    """Return whether every frame is ours or the standard library's. Frames of the program itself must be shown."""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if module != "holdfast" and module not in sys.stdlib_module_names:
            return False
        traceback = traceback.tb_next
    return True
