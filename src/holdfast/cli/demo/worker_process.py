"""One worker of the demo: `python -m holdfast.cli.demo.worker_process URL NAME`.

It writes a line for its start, and one for each message with what became of it. It ends when its standard input does:
whoever started it is gone then.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable

import holdfast
from holdfast.cli.demo.producers import KINDS, LEASE_S, Task

STARTED = "started"
_CONCURRENCY = 4


def make_worker(where: str | holdfast.AsyncHoldfast, name: str, tell: Callable[[str], None]) -> holdfast.Worker:
    worker = holdfast.Worker(where, owner=name, grace=5)
    for kind in KINDS:
        worker.handler(kind.queue, tenant=kind.tenant, concurrency=_CONCURRENCY, lease=LEASE_S)(handle)
    worker.on_start(lambda worker: tell(STARTED))
    worker.after(lambda message, outcome: tell(outcome.kind))
    return worker


async def handle(task: Task, message: holdfast.Message) -> None:
    await asyncio.sleep(task.seconds)
    if message.attempt <= task.fails:
        raise ConnectionError("the other side did not answer")


def main() -> None:
    _, url, name = sys.argv
    # The demo shows what fails: it is meant to.
    logging.disable(logging.WARNING)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    make_worker(url, name, lambda line: print(line, flush=True)).run()  # noqa: T201


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
