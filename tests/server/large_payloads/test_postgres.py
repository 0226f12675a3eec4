"""Payloads larger than a server's memory is allowed to grow, on PostgreSQL: in, out, and through a kill."""

import signal
from collections.abc import Iterator

import pytest

from tests.postgres.landing_calls import connected, opened
from tests.postgres.server import PostgresServer
from tests.server.large_payloads.test_served import (
    MIB,
    begin_upload,
    forget_peak,
    memory_mib,
    pass_through,
    send_blocks,
)
from tests.server.served import Served

# What the first large payload makes a server keep for ever: buffers of its connections, and code not run before.
WARM_MIB = 8
# A few pieces, on their way through sockets and the driver; half of the smaller payload.
BOUND_MIB = 16


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    [url] = postgres.make_databases("large_payloads")
    return url


def serve(url: str) -> Served:
    return Served("--store", url, "--max-payload", "2GiB")


async def rows(url: str, table: str) -> int:
    async with connected(url) as connection:
        number: int = await connection.fetchval(f"SELECT count(*) FROM holdfast.{table}")
        return number


async def check_memory(url: str, size_mib: int) -> None:
    with serve(url) as server:
        await pass_through(server, WARM_MIB)
        forget_peak(server)
        before = memory_mib(server, "VmRSS")
        await pass_through(server, size_mib)
        assert memory_mib(server, "VmHWM") - before < BOUND_MIB
        server.signal()
        assert server.end() == 0


@pytest.mark.spec("3.10")
async def test_a_payload_of_32_mib_goes_in_and_out_within_bounded_memory(url: str) -> None:
    await check_memory(url, 32)


@pytest.mark.proof
async def test_a_payload_of_1_gib_goes_in_and_out_within_bounded_memory(url: str) -> None:
    await check_memory(url, 1_024)


async def test_a_kill_during_an_upload_leaves_nothing_to_be_seen_and_sweeps_delete_it(url: str) -> None:
    with serve(url) as server:
        caller = await begin_upload(server, 16 * MIB)
        await send_blocks(caller, 12)
        # Answered after the server has read most of what was sent before it.
        assert (await server.call("/v1/queue/enqueue", {"messages": [{"payload": "kept"}]})).status == 200
        server.process.send_signal(signal.SIGKILL)
        server.end()
    assert (await rows(url, "items"), await rows(url, "stages")) == (1, 1)
    assert await rows(url, "pieces") > 0
    async with opened([url]) as store, connected(url) as connection:
        assert [queue.ref.queue for queue in await store.directory.list_queues("default")] == ["default"]
        await connection.execute("UPDATE holdfast.stages SET at = 'epoch'")
        while (await store.sweep(1_000, 0)).changed:
            pass
    assert [await rows(url, table) for table in ("items", "stages", "pieces")] == [1, 0, 0]
