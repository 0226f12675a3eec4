"""A program that reads the messages of queue `large`, and prints how much its memory grew with the last of them.

python -m tests.server.large_payloads.reader URL HOW DIRECTORY
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import holdfast

LEASE_S = 600


def memory_mib(what: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1]) // 1_024


class Growth:
    """The growth of memory: the largest use since the start, minus the use before."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = memory_mib("VmRSS")

    def mib(self) -> int:
        return memory_mib("VmHWM") - self._before


def checksum_of(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            checksum = crc32(part, checksum)
    return checksum


def write_out(message: holdfast.BlockingMessage, directory: Path) -> int:
    path = directory / "payload"
    assert message.write_to(path) == message.size
    return checksum_of(path)


def add_up(message: holdfast.BlockingMessage, directory: Path) -> int:
    checksum = 0
    for part in message.chunks():
        checksum = crc32(part, checksum)
    return checksum


def read_blocking(url: str, directory: Path, read: Callable[[holdfast.BlockingMessage, Path], int]) -> Any:
    told = None
    with holdfast.open(url) as hf:

        def claim() -> holdfast.BlockingMessage | None:
            return next(iter(hf.queue("large").claim(lease=LEASE_S)), None)

        growth = Growth()
        for message in iter(claim, None):
            with message:
                told = {"checksum": read(message, directory), "size": message.size, "grown_mib": growth.mib()}
            growth = Growth()
    return told


async def read_async(url: str, directory: Path) -> Any:
    told = None
    async with holdfast.open_async(url) as hf:
        growth = Growth()
        while messages := await hf.queue("large").claim(lease=LEASE_S, stream=True):
            async with messages[0] as message:
                size = await message.write_to(directory / "payload")
                grown_mib = growth.mib()
            told = {"checksum": checksum_of(directory / "payload"), "size": size, "grown_mib": grown_mib}
            growth = Growth()
    return told


def read_in_worker(url: str, directory: Path) -> Any:
    worker = holdfast.Worker(url)
    told: list[Any] = []
    growth = [Growth()]

    @worker.handler("large", lease="10m", timeout="10m")
    def handle(message: holdfast.BlockingMessage) -> None:
        checksum = write_out(message, directory)
        told.append({"checksum": checksum, "size": message.size, "grown_mib": growth[0].mib()})
        growth[0] = Growth()
        if len(told) == 2:
            worker.stop()

    worker.run()
    return told[-1]


def main(url: str, how: str, directory: str) -> None:
    at = Path(directory)
    match how:
        case "write_to":
            told = read_blocking(url, at, write_out)
        case "chunks":
            told = read_blocking(url, at, add_up)
        case "async":
            told = asyncio.run(read_async(url, at))
        case "worker":
            told = read_in_worker(url, at)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
