"""Functions called in forked children, of which the caller learns how they ended."""

import os
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.clock import steady_s

# No child on small stores takes this long, unless it never ends.
PATIENCE_S = 60.0


class Ended(msgspec.Struct, kw_only=True):
    """How a child ended: by itself with a result, by an error, by a signal, or never."""

    result: Any = None
    error: str | None = None
    signal: int | None = None
    hangs: bool = False

    @property
    def was_killed(self) -> bool:
        return self.signal == signal.SIGKILL and not self.hangs


def in_child(function: Callable[[], Any], patience_s: float = PATIENCE_S) -> Ended:
    """Call the function in a child of its own."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of threads that stay behind. They may: what the child does without them is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(reading)
        _run_child(function, writing)
    os.close(writing)
    try:
        said, hangs = _read_all(reading, steady_s() + patience_s)
    finally:
        os.close(reading)
    if hangs:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status), hangs=hangs)
    return msgspec.json.decode(said, type=Ended) if said else Ended(error="the child ended and said nothing")


def _run_child(function: Callable[[], Any], writing: int) -> None:
    """Ends the process in every case: what the driver has open and to be tidied is not the child's."""
    try:
        try:
            ended = Ended(result=function())
        except BaseException:
            ended = Ended(error=traceback.format_exc())
        said = msgspec.json.encode(ended)
        while said:
            said = said[os.write(writing, said) :]
    finally:
        os._exit(0)


def _read_all(reading: int, until_s: float) -> tuple[bytes, bool]:
    said = bytearray()
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until_s - steady_s()))
        if not ready:
            return bytes(said), True
        piece = os.read(reading, 1 << 16)
        if not piece:
            return bytes(said), False
        said += piece
