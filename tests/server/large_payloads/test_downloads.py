"""Payloads larger than the memory of a reader that uses the client, over HTTP and embedded."""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import holdfast
from tests.server.large_payloads.test_served import (
    BLOCK,
    BOUND_MIB,
    MIB,
    WARM_MIB,
    forget_peak,
    memory_mib,
    serve,
    upload,
)
from tests.server.served import Served


async def read(where: str | Path, how: str, directory: Path) -> Any:
    """Read in a separate process, whose memory is the client's alone."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.server.large_payloads.reader",
        str(where),
        how,
        str(directory),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await program.communicate()
    assert program.returncode == 0
    return json.loads(out)


async def fill(server: Served, size_mib: int) -> None:
    """Upload two payloads. The first is a warm-up for memory that does not depend on the size."""
    await upload(server, WARM_MIB)
    await upload(server, size_mib)


def say(figures: str) -> None:
    sys.stdout.write(f"{figures}\n")


def check(told: Any, size_mib: int) -> None:
    checksum = 0
    for _ in range(size_mib):
        checksum = crc32(BLOCK, checksum)
    assert (told["size"], told["checksum"]) == (size_mib * MIB, checksum)
    assert told["grown_mib"] < BOUND_MIB, told


async def read_over_http(directory: Path, how: str, size_mib: int) -> None:
    with serve(directory) as server:
        await fill(server, size_mib)
        forget_peak(server)
        before = memory_mib(server, "VmRSS")
        begun = time.monotonic()
        told = await read(server.url, how, directory)
        taken_s = time.monotonic() - begun
        grown_mib = memory_mib(server, "VmHWM") - before
        say(f"{how}, {size_mib} MiB: client +{told['grown_mib']} MiB, server +{grown_mib} MiB, {taken_s:.1f} s in all")
        check(told, size_mib)
        assert grown_mib < BOUND_MIB


async def read_embedded(directory: Path, how: str, size_mib: int) -> None:
    with serve(directory) as server:
        await fill(server, size_mib)
        server.signal()
        assert server.end() == 0
    told = await read(directory / "store", how, directory)
    say(f"embedded {how}, {size_mib} MiB: +{told['grown_mib']} MiB")
    check(told, size_mib)


@pytest.mark.parametrize("how", ["write_to", "chunks", "async", "worker"])
async def test_a_payload_of_64_mib_is_read_over_http_within_bounded_memory(tmp_path: Path, how: str) -> None:
    await read_over_http(tmp_path, how, 64)


@pytest.mark.spec("3.10")
@pytest.mark.parametrize("how", ["write_to", "async"])
async def test_a_payload_of_64_mib_is_read_embedded_within_bounded_memory(tmp_path: Path, how: str) -> None:
    await read_embedded(tmp_path, how, 64)


@pytest.mark.proof
@pytest.mark.parametrize("how", ["write_to", "chunks", "async", "worker"])
async def test_a_payload_of_1_gib_is_read_over_http_within_bounded_memory(tmp_path: Path, how: str) -> None:
    await read_over_http(tmp_path, how, 1_024)


@pytest.mark.proof
@pytest.mark.parametrize("how", ["write_to", "async"])
async def test_a_payload_of_1_gib_is_read_embedded_within_bounded_memory(tmp_path: Path, how: str) -> None:
    await read_embedded(tmp_path, how, 1_024)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_payload_is_read_on_after_the_server_was_restarted(tmp_path: Path, how: signal.Signals) -> None:
    server = await asyncio.to_thread(serve(tmp_path).__enter__)
    try:
        port = str(server.port)
        await upload(server, 8)
        async with asyncio.timeout(120), holdfast.open_async(server.url, retries=20) as hf:
            [message] = await hf.queue("large").claim(lease=600, stream=True)
            # A claim is durable with the next sync: a kill before it would end this lease.
            await hf.queue("other").enqueue("synced")
            read = b""
            async for part in message.chunks():
                read += part
                if len(read) == 4 * MIB:
                    server.signal(how)
                    await asyncio.to_thread(server.end)
                    server = await asyncio.to_thread(serve(tmp_path, "--port", port).__enter__)
            assert read == BLOCK * 8
            await message.ack()
    finally:
        server.__exit__(None, None, None)
