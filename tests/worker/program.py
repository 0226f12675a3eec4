"""A worker as a separate program: `python -m tests.worker.program URL LOG WORK …`. Says what it does in LOG."""

import asyncio
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import holdfast

url, log, work = sys.argv[1:4] if len(sys.argv) > 3 else ("memory://", os.devnull, "0")
options: dict[str, Any] = dict(each.split("=") for each in sys.argv[4:])
worker = holdfast.Worker(url, grace=float(options.pop("grace", 30)))
how = options.pop("how", "async")
options = {name: int(value) if value.isdigit() else value for name, value in options.items()}


def say(*words: object) -> None:
    """In one write each: several processes append."""
    line = " ".join(map(str, [*words, os.getpid()]))
    with Path(log).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


async def on_loop(number: int, message: holdfast.Message) -> None:
    say("begin", number, message.attempt, message.version)
    await asyncio.sleep(float(work))
    say("end", number, message.attempt, message.version)


def plainly(number: int, message: holdfast.Message) -> None:
    say("begin", number, message.attempt, message.version)
    time.sleep(float(work))
    say("end", number, message.attempt, message.version)


async def stubbornly(number: int, message: holdfast.Message) -> None:
    say("begin", number, message.attempt, message.version)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


@worker.after
def after(message: holdfast.Message, outcome: holdfast.Outcome) -> None:
    say(outcome.kind, message.json())


@worker.on_start
def started(worker: holdfast.Worker) -> None:
    say("started", "-")


if how == "process":
    options["process"] = True
worker.handler("q", **options)({"async": on_loop, "stubborn": stubbornly}.get(how, plainly))

if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    say("running", "-")
    worker.run()
    say("stopped", "-")
