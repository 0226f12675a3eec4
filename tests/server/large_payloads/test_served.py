"""Payloads larger than the server's memory is allowed to grow: in, out, and through a kill."""

import asyncio
import json
import os
import signal
import statistics
from pathlib import Path
from time import monotonic
from zlib import crc32

import pytest

from holdfast.stores.rocks.verify.store_check import verify
from tests.server.served import Caller, Served

MIB = 1 << 20
BLOCK = os.urandom(MIB)
HEAD = (
    b'--b\r\nContent-Disposition: form-data; name="meta"\r\n\r\n{"queue": "large"}\r\n'
    b'--b\r\nContent-Disposition: form-data; name="payload"\r\n\r\n'
)
TAIL = b"\r\n--b--\r\n"

# What RocksDB holds however large a payload is: its write buffers, of which two of 32 MiB fill, and what it caches. The
# bound beyond it is small beside the payloads, and generous beside the few pieces that are in memory at a time.
WARM_MIB = 64
BOUND_MIB = 32


def memory_mib(server: Served, what: str) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(what)]
    return int(line.split()[1]) // 1_024


def forget_peak(server: Served) -> None:
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


async def begin_upload(server: Served, size: int) -> Caller:
    caller = await server.connect()
    caller.writer.write(
        b"POST /v1/queue/enqueue HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: %d\r\n\r\n" % (len(HEAD) + size + len(TAIL)) + HEAD
    )
    return caller


async def send_blocks(caller: Caller, number: int) -> None:
    for _ in range(number):
        caller.writer.write(BLOCK)
        await caller.writer.drain()


async def upload(server: Served, size_mib: int) -> str:
    caller = await begin_upload(server, size_mib * MIB)
    await send_blocks(caller, size_mib)
    caller.writer.write(TAIL)
    answer = await caller.answer()
    caller.close()
    assert answer.status == 200, answer
    return str(answer.json["messages"][0]["id"])


async def download(server: Served) -> tuple[str, str, int]:
    """A message's id and receipt, and the checksum of its payload."""
    caller = await server.connect()
    asked = json.dumps({"queue": "large", "lease_ms": 600_000}).encode()
    caller.writer.write(
        b"POST /v1/queue/dequeue HTTP/1.1\r\nHost: localhost\r\nAccept: multipart/mixed\r\nContent-Length: %d\r\n\r\n%b"
        % (len(asked), asked)
    )
    status, _ = await caller.head()
    assert status == 200
    # The JSON part, and the head of the payload's: they come in a chunk of their own.
    described, _, rest = (await read_chunk(caller)).partition(b"\r\n--")
    message = json.loads(described[described.index(b"{") :])
    remaining = int(rest.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    checksum = 0
    while remaining > 0:
        chunk = await read_chunk(caller)
        checksum = crc32(chunk[:remaining], checksum)
        remaining -= len(chunk)
    while await read_chunk(caller):
        pass
    caller.close()
    return message["id"], message["receipt"], checksum


async def read_chunk(caller: Caller) -> bytes:
    size = int(await caller.reader.readline(), 16)
    chunk = await caller.reader.readexactly(size)
    await caller.reader.readexactly(2)
    return chunk


async def ack(server: Served, receipt: str) -> None:
    assert (await server.call("/v1/queue/ack", {"queue": "large", "receipts": [receipt]})).status == 200


def serve(directory: Path, *more: str) -> Served:
    return Served("--data", directory / "store", "--max-payload", "2GiB", *more)


async def pass_through(server: Served, size_mib: int) -> None:
    id = await upload(server, size_mib)
    checksum = 0
    for _ in range(size_mib):
        checksum = crc32(BLOCK, checksum)
    got, receipt, received = await download(server)
    assert (got, received) == (id, checksum)
    await ack(server, receipt)


async def check_memory(directory: Path, size_mib: int) -> None:
    with serve(directory) as server:
        await pass_through(server, WARM_MIB)
        forget_peak(server)
        before = memory_mib(server, "VmRSS")
        await pass_through(server, size_mib)
        assert memory_mib(server, "VmHWM") - before < BOUND_MIB
        server.signal()
        assert server.end() == 0
    report = verify(directory / "store")
    assert (report.is_clean, report.messages, report.unfinished) == (True, 0, 0)


@pytest.mark.spec("3.10")
async def test_a_payload_of_64_mib_goes_in_and_out_within_bounded_memory(tmp_path: Path) -> None:
    await check_memory(tmp_path, 64)


@pytest.mark.spec("3.10")
@pytest.mark.proof
async def test_a_payload_of_1_gib_goes_in_and_out_within_bounded_memory(tmp_path: Path) -> None:
    await check_memory(tmp_path, 1_024)


async def test_small_enqueues_are_answered_while_a_large_payload_comes_and_goes(tmp_path: Path) -> None:
    waits: list[float] = []

    async def enqueue_small(server: Served) -> None:
        caller = await server.connect()
        while True:
            begun = monotonic()
            caller.send("/v1/queue/enqueue", {"queue": "small", "messages": [{"payload": 1}]})
            assert (await caller.answer()).status == 200
            waits.append(monotonic() - begun)

    with serve(tmp_path) as server:
        small = asyncio.ensure_future(enqueue_small(server))
        begun = monotonic()
        await pass_through(server, 64)
        taken_s = monotonic() - begun
        assert not small.done()
        small.cancel()
    # Far from what one of them would wait behind the payload, on its way in or out.
    assert len(waits) >= 10
    assert statistics.median(waits) < taken_s / 20
    assert max(waits) < taken_s / 2


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_a_kill_during_an_upload_leaves_no_message_and_no_damage(tmp_path: Path, durability: str) -> None:
    directory = tmp_path / "store"
    with serve(tmp_path, "--durability", durability) as server:
        caller = await begin_upload(server, 16 * MIB)
        await send_blocks(caller, 12)
        # Answered after the server has read most of what was sent before it.
        assert (await server.call("/v1/queue/enqueue", {"messages": [{"payload": "kept"}]})).status == 200
        server.process.send_signal(signal.SIGKILL)
        server.end()
    report = verify(directory)
    assert (report.is_clean, report.messages, report.unfinished) == (True, 1, 1), report
    assert 0 < report.unfinished_bytes <= 12 * MIB
    with serve(tmp_path, "--durability", durability) as server:
        await pass_through(server, 2)
        assert (await server.call("/v1/queue/dequeue", {})).json["messages"][0]["payload"] == "kept"
        server.signal()
        assert server.end() == 0
    report = verify(directory)
    assert (report.is_clean, report.messages, report.unfinished) == (True, 1, 0), report
