"""Calls in forked child processes, with the result or the way in which the child ended."""

import os
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.clock import steady_s

# In seconds. A child that works on a small store takes longer only if it hangs.
PATIENCE_S = 60.0


class ChildResult(msgspec.Struct, kw_only=True):
    """The way in which a child process ended: with a result, an error (a traceback) or a signal.

    `hangs` is true for a child that had not ended in time and was killed for it.
    """

    result: Any = None
    error: str | None = None
    signal: int | None = None
    hangs: bool = False

    @property
    def was_killed(self) -> bool:
        """Return whether the child was ended by SIGKILL, and not by `in_child` itself."""
        return self.signal == signal.SIGKILL and not self.hangs


def in_child(function: Callable[[], Any], patience_s: float = PATIENCE_S) -> ChildResult:
    """Call the function in a forked child process and return how the child ended.

    The function's result must be encodable as JSON. A child that takes longer than `patience_s` seconds is killed.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns that the child lacks the parent's threads. The tests are about that situation.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(reading)
        _run_child(function, writing)
    os.close(writing)
    try:
        report, hangs = _read_all(reading, steady_s() + patience_s)
    finally:
        os.close(reading)
    if hangs:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return ChildResult(signal=os.WTERMSIG(status), hangs=hangs)
    return (
        msgspec.json.decode(report, type=ChildResult)
        if report
        else ChildResult(error="the child ended without a result")
    )


def _run_child(function: Callable[[], Any], writing: int) -> None:
    """Run the function and end the process without cleanup.

    The files, tasks and exit handlers of the test session belong to the parent, and the child must not touch them.
    """
    try:
        try:
            ended = ChildResult(result=function())
        except BaseException:
            ended = ChildResult(error=traceback.format_exc())
        report = msgspec.json.encode(ended)
        while report:
            report = report[os.write(writing, report) :]
    finally:
        os._exit(0)


def _read_all(reading: int, until_s: float) -> tuple[bytes, bool]:
    received = bytearray()
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until_s - steady_s()))
        if not ready:
            return bytes(received), True
        piece = os.read(reading, 1 << 16)
        if not piece:
            return bytes(received), False
        received += piece
