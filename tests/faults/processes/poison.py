"""Handlers that kill their process: `python -m tests.faults.processes.poison URL`, or in separate processes."""

import os
import resource
import signal
import sys

import holdfast


def work(how: str) -> None:
    match how:
        case "exit":
            os._exit(9)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed for its memory":  # as the kernel does it
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory limit":
            limit = 512 << 20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            bytearray(limit)
        case "fine":
            pass
        case _:
            raise AssertionError(how)


def main(url: str) -> None:
    worker = holdfast.Worker(url)

    @worker.handler("q", lease="400ms", concurrency=1)
    async def handle(how: str) -> None:
        work(how)

    worker.run()


if __name__ == "__main__":
    main(sys.argv[1])
