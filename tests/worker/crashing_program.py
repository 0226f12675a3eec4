"""A worker as a separate program: `python -m tests.worker.crashing_program URL LOG`. Says in LOG when it crashes."""

import json
import os
import sys
import time
from pathlib import Path

import holdfast

url, log = sys.argv[1:] if len(sys.argv) > 1 else ("memory://", os.devnull)
worker = holdfast.Worker(url)


def say(**facts: object) -> None:
    """In one write each, so that a reader sees whole lines."""
    with Path(log).open("ab", buffering=0) as file:
        file.write(f"{json.dumps(facts)}\n".encode())


@worker.handler("other")
@worker.handler("missing")
async def handle(number: int, message: holdfast.Message) -> None:
    say(handled=number, queue=message.queue)


@worker.on_crash
def crashed(crash: holdfast.Crash) -> None:
    assert isinstance(crash.error, holdfast.QueueNotFound)
    say(crash=crash.count, queue=crash.queue, delay_s=crash.delay_s, at_s=time.monotonic())


if __name__ == "__main__":
    worker.run()
    say(stopped=True)
