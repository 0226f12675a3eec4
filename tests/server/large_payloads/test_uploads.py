"""Payloads larger than the memory of an uploader that uses the client, over HTTP and embedded."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import holdfast
from holdfast.stores.rocks.verify.store_check import verify
from tests.server.large_payloads.test_served import (
    BOUND_MIB,
    MIB,
    WARM_MIB,
    ack,
    download,
    forget_peak,
    memory_mib,
    serve,
)
from tests.server.large_payloads.writer import BLOCK

# As much as RocksDB's write buffers hold, in payloads that are small beside the one that is measured.
WARM_UP_MIB = [8] * 12
WAYS = ["path", "iterable", "async path", "async iterable"]


async def write(where: str | Path, how: str, directory: Path, *sizes_mib: int) -> Any:
    """Upload in a separate process, whose memory is the client's alone."""
    program = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.server.large_payloads.writer",
            str(where),
            how,
            str(directory),
            *map(str, sizes_mib),
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await program.communicate()
    assert program.returncode == 0
    return json.loads(out)


def say(figures: str) -> None:
    sys.stdout.write(f"{figures}\n")


def checksum_of(size_mib: int) -> int:
    checksum = 0
    for _ in range(size_mib):
        checksum = crc32(BLOCK, checksum)
    return checksum


async def write_over_http(directory: Path, how: str, size_mib: int) -> None:
    with serve(directory) as server:
        await write(server.url, how, directory, WARM_MIB)
        _, receipt, _ = await download(server)
        await ack(server, receipt)
        forget_peak(server)
        before = memory_mib(server, "VmRSS")
        begun = time.monotonic()
        told = await write(server.url, how, directory, 2, size_mib)
        taken_s = time.monotonic() - begun
        grown_mib = memory_mib(server, "VmHWM") - before
        say(f"{how}, {size_mib} MiB: client +{told['grown_mib']} MiB, server +{grown_mib} MiB, {taken_s:.1f} s in all")
        assert told["grown_mib"] < BOUND_MIB
        assert grown_mib < BOUND_MIB
        await ack(server, (await download(server))[1])  # the small one, which warmed the client up
        id, _, checksum = await download(server)
        assert (id, checksum) == (told["id"], checksum_of(size_mib))


async def write_embedded(directory: Path, how: str, size_mib: int) -> None:
    told = await write(directory / "store", how, directory, *WARM_UP_MIB, size_mib)
    say(f"embedded {how}, {size_mib} MiB: +{told['grown_mib']} MiB")
    assert told["grown_mib"] < BOUND_MIB
    report = verify(directory / "store")
    assert (report.is_clean, report.messages, report.unfinished) == (True, len(WARM_UP_MIB) + 1, 0)


@pytest.mark.spec("3.10")
@pytest.mark.parametrize("how", WAYS)
async def test_a_payload_of_64_mib_is_uploaded_over_http_within_bounded_memory(tmp_path: Path, how: str) -> None:
    await write_over_http(tmp_path, how, 64)


@pytest.mark.parametrize("how", ["path", "async iterable"])
async def test_a_payload_of_64_mib_is_uploaded_embedded_within_bounded_memory(tmp_path: Path, how: str) -> None:
    await write_embedded(tmp_path, how, 64)


@pytest.mark.proof
@pytest.mark.parametrize("how", WAYS)
async def test_a_payload_of_1_gib_is_uploaded_over_http_within_bounded_memory(tmp_path: Path, how: str) -> None:
    await write_over_http(tmp_path, how, 1_024)


@pytest.mark.proof
@pytest.mark.parametrize("how", ["path", "async iterable"])
async def test_a_payload_of_1_gib_is_uploaded_embedded_within_bounded_memory(tmp_path: Path, how: str) -> None:
    await write_embedded(tmp_path, how, 1_024)


async def test_an_upload_with_a_key_outlives_a_kill_of_the_server_and_one_without_leaves_nothing(
    tmp_path: Path,
) -> None:
    server = await asyncio.to_thread(serve(tmp_path).__enter__)
    path = tmp_path / "payload"
    path.write_bytes(BLOCK * 16)
    restarts: list[Any] = []

    async def restart() -> None:
        nonlocal server
        port = str(server.port)
        server.signal(signal.SIGKILL)
        await asyncio.to_thread(server.end)
        server = await asyncio.to_thread(serve(tmp_path, "--port", port).__enter__)

    async def interrupted(file: Any) -> AsyncIterator[bytes]:
        for _ in range(8):
            yield file.read(MIB)
        await restart()
        while part := file.read(MIB):
            yield part

    class Interrupting:
        """A file in whose middle, once, the server is restarted."""

        def __init__(self, file: Any, loop: asyncio.AbstractEventLoop) -> None:
            self._file = file
            self._loop = loop
            self.seekable, self.seek, self.tell = file.seekable, file.seek, file.tell

        def read(self, size: int) -> Any:
            if self.tell() == 8 * MIB and not restarts:
                restarts.append(asyncio.run_coroutine_threadsafe(restart(), self._loop).result())
            return self._file.read(size)

    try:
        async with asyncio.timeout(120), holdfast.open_async(server.url, retries=20) as hf:
            q = hf.queue("large")
            await q.set_policy(lease_ms=600_000)
            with path.open("rb") as file:
                id = await q.upload(Interrupting(file, asyncio.get_running_loop()), key="k")
            with path.open("rb") as file, pytest.raises(holdfast.StoreUnavailable):
                await q.upload(interrupted(file))
            assert len(restarts) == 1
            assert (await q.stats()).ready == 1
            [message] = await q.claim(stream=True)
            assert (message.id, await message.load()) == (id, BLOCK * 16)
            await message.ack()
        server.signal()
        assert server.end() == 0
    finally:
        server.__exit__(None, None, None)
    report = verify(tmp_path / "store")
    assert (report.is_clean, report.messages, report.unfinished) == (True, 0, 0), report
