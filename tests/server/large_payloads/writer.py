"""A program that uploads payloads into queue `large`, and prints how much its peak of memory grew with the last.

python -m tests.server.large_payloads.writer URL HOW DIRECTORY SIZE_MIB…
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import holdfast
from tests.server.large_payloads.reader import memory_mib

MIB = 1 << 20
BLOCK = bytes(range(256)) * (MIB // 256)


def blocks(size_mib: int) -> Iterator[bytes]:
    for _ in range(size_mib):
        yield BLOCK


async def blocks_in_turns(size_mib: int) -> AsyncIterator[bytes]:
    for block in blocks(size_mib):
        await asyncio.sleep(0)
        yield block


def written(directory: Path, size_mib: int) -> Path:
    path = directory / f"{size_mib} MiB"
    with path.open("wb") as file:
        for block in blocks(size_mib):
            file.write(block)
    return path


def settings_for(url: str) -> dict[str, Any]:
    return {} if url.startswith("http") else {"max_payload": "2GiB"}


def write_blocking(url: str, sources: Iterator[Any]) -> Any:
    told = None
    with holdfast.open(url, **settings_for(url)) as hf:
        for source in sources:
            before = memory_mib("VmHWM")
            id = hf.queue("large").upload(source)
            told = {"id": id, "grown_mib": memory_mib("VmHWM") - before}
    return told


async def write_async(url: str, sources: Iterator[Any]) -> Any:
    told = None
    async with holdfast.open_async(url, **settings_for(url)) as hf:
        for source in sources:
            before = memory_mib("VmHWM")
            id = await hf.queue("large").upload(source)
            told = {"id": id, "grown_mib": memory_mib("VmHWM") - before}
    return told


def main(url: str, how: str, directory: str, *sizes_mib: str) -> None:
    sizes = list(map(int, sizes_mib))
    match how:
        case "path":
            told = write_blocking(url, (written(Path(directory), size) for size in sizes))
        case "iterable":
            told = write_blocking(url, map(blocks, sizes))
        case "async path":
            told = asyncio.run(write_async(url, (written(Path(directory), size) for size in sizes)))
        case "async iterable":
            told = asyncio.run(write_async(url, map(blocks_in_turns, sizes)))
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
