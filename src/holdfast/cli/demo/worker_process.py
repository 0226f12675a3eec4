"""One worker of the demo: `python -m holdfast.cli.demo.worker_process URL NAME`.

It writes one line when it has started, and one line with the outcome of each message. It exits when its standard input
ends, because the process that started it is gone then.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable

import holdfast
from holdfast.cli.demo.producers import DEMO_QUEUES, LEASE_S, Task

STARTED = "started"
_CONCURRENCY = 4


def make_worker(target: str | holdfast.AsyncHoldfast, name: str, report: Callable[[str], None]) -> holdfast.Worker:
    """Return a worker for all queues of the demo. `report` is called with `STARTED`, and then with each outcome."""
    worker = holdfast.Worker(target, owner=name, grace=5)
    for each in DEMO_QUEUES:
        worker.handler(each.queue, tenant=each.tenant, concurrency=_CONCURRENCY, lease=LEASE_S)(handle)
    worker.on_start(lambda worker: report(STARTED))
    worker.after(lambda message, outcome: report(outcome.kind))
    return worker


async def handle(task: Task, message: holdfast.Message) -> None:
    """Take as long as the task says, and fail its first attempts."""
    await asyncio.sleep(task.seconds)
    if message.attempt <= task.fails:
        raise ConnectionError("the other side did not respond")


def main() -> None:
    """Run the worker until its standard input ends."""
    _, url, name = sys.argv
    # Failures are intended, and the demo counts them.
    logging.disable(logging.WARNING)
    threading.Thread(target=_exit_with_stdin, daemon=True).start()
    make_worker(url, name, lambda line: print(line, flush=True)).run()  # noqa: T201


def _exit_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
