"""The process that has everything imported and the shim loaded, and forks a child for each task.

Each line of input is one `Job`, each line of output its `Done`. RocksDB is opened in children alone: its threads would
not survive the fork, and what a kill or a damaged file does to a process must stay with the child.
"""

import logging
import os
import sys
import traceback
from importlib import import_module
from typing import Any

import msgspec


class Job(msgspec.Struct, kw_only=True):
    """`task`: a function of a module beside this one, as `module:name`, which is called in the driver itself."""

    number: int
    task: str
    arguments: dict[str, Any] = {}


class Done(msgspec.Struct, kw_only=True):
    number: int
    result: Any = None
    error: str | None = None


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
            task = getattr(import_module(f"tests.machinery.disk.{module}"), name)
            done = Done(number=job.number, result=task(**job.arguments))
        except Exception:
            done = Done(number=job.number, error=traceback.format_exc())
        said = encode(done) + b"\n"
        while said:
            said = said[os.write(answers, said) :]
