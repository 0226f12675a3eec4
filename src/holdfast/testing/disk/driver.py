"""The process that has everything imported and the shim loaded, and forks a child for each task.

Each line of input is one `Job`, each line of output its `Done`. RocksDB is opened in children alone: its threads would
not survive the fork, and what a kill or a damaged file does to a process must stay with the child.
"""

import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from holdfast.clock import steady_s

# No child on these small stores takes so long, but for one that never ends.
PATIENCE_S = 60.0


class Job(msgspec.Struct, kw_only=True):
    """`task`: a function of a module beside this one, as `module:name`, which is called in the driver itself."""

    number: int
    task: str
    arguments: dict[str, Any] = {}


class Done(msgspec.Struct, kw_only=True):
    number: int
    result: Any = None
    error: str | None = None


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


def main() -> None:
    # A store that was cut off says so, each time.
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    decode, encode = msgspec.json.Decoder(Job).decode, msgspec.json.encode
    # What tasks print must not be taken for answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        job = decode(line)
        try:
            module, _, name = job.task.partition(":")
            task = getattr(import_module(f"holdfast.testing.disk.{module}"), name)
            done = Done(number=job.number, result=task(**job.arguments))
        except Exception:
            done = Done(number=job.number, error=traceback.format_exc())
        said = encode(done) + b"\n"
        while said:
            said = said[os.write(answers, said) :]
