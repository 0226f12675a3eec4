"""Short tracebacks: an error of ours shows the called method and none of the frames below it."""

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

# A program also calls the methods that enter and leave a `with` block.
_SPECIAL = frozenset({"__aenter__", "__aexit__", "__enter__", "__exit__"})


def trim_class_tracebacks(cls: C) -> C:
    """Decorate a class so that errors raised by its public methods show one frame of this package.

    With HOLDFAST_DEBUG set, every frame is kept. An `Internal` error always keeps its frames, because it is a bug to
    report.
    """
    for name, method in list(vars(cls).items()):
        if (name in _SPECIAL or not name.startswith("_")) and inspect.isfunction(method):
            setattr(cls, name, trim_tracebacks(method))
    return cls


def trim_tracebacks(method: F) -> F:
    """Decorate one function so that its errors show one frame of this package."""
    return cast(F, _wrap(method))


def untrimmed(method: F) -> F:
    """Return the undecorated method, for callers that trim tracebacks themselves, so that no call pays for it twice."""
    return cast(F, getattr(method, "__wrapped__", method))


def _wrap(method: Callable[..., Any]) -> Callable[..., Any]:
    # A generator's frames run in the caller's loop, so its errors already show one frame.
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        return method
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(*args: Any, **named: Any) -> Any:
            try:
                return await method(*args, **named)
            except HoldfastError as error:
                if not _should_trim(error):
                    raise
                raise error.with_traceback(None) from error.__cause__

        return call_async

    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except HoldfastError as error:
            if not _should_trim(error):
                raise
            raise error.with_traceback(None) from error.__cause__

    return call


def _should_trim(error: HoldfastError) -> bool:
    if isinstance(error, Internal) or os.environ.get("HOLDFAST_DEBUG"):
        return False
    return _has_only_library_frames(error.__traceback__)


def _has_only_library_frames(traceback: TracebackType | None) -> bool:
    """Return whether every frame belongs to this package or the standard library. A program's own frames are shown."""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if module != "holdfast" and module not in sys.stdlib_module_names:
            return False
        traceback = traceback.tb_next
    return True
