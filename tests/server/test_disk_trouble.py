"""A served store on a disk that is full or fails: the operator is informed, and it recovers by itself without loss."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncQueue
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.disk.free_space import LOW_DISK_BYTES
from tests.crash.rocks import verify_store
from tests.machinery.disk.shim import build_shim
from tests.server.served import Answer, Served
from tests.small_disk import mounted
from tests.telemetry.scraping import sample

PATIENCE_S = 30.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", LOW_DISK_BYTES + (32 << 20)) as place:
        yield place


async def until_ready(server: Served, status: int) -> Answer:
    """Wait for this answer of /readyz."""
    ends_s = time.monotonic() + PATIENCE_S
    while (answer := await server.get("/readyz")).status != status:
        assert time.monotonic() < ends_s, answer.body
        await asyncio.sleep(0.02)
    return answer


async def until_refused(queue: AsyncQueue) -> tuple[list[bytes], StoreUnavailable]:
    """Enqueue until that fails. Return the payloads that were accepted meanwhile, and the error."""
    accepted: list[bytes] = []
    ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        payload = b"meanwhile %d" % len(accepted)
        try:
            await queue.enqueue(payload)
        except StoreUnavailable as error:
            return accepted, error
        accepted.append(payload)
    raise AssertionError("enqueues are still accepted")


async def metrics_of(server: Served) -> bytes:
    return (await server.get("/metrics")).body


def doctor(server: Served) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "holdfast", "doctor", "--json", "--url", server.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def events(server: Served, name: str) -> list[Any]:
    lines = [json.loads(line) for line in server.log.splitlines()]
    return [line for line in lines if line["event"] == name]


@pytest.mark.spec("4.10")
@pytest.mark.slow
async def test_a_full_disk_is_logged_once_shown_everywhere_and_left_by_itself(small_disk: Path) -> None:
    store, other = small_disk / "store", small_disk / "other"
    with Served("--data", store) as server:
        async with holdfast.open_async(server.url, retries=0) as hf:
            queue = hf.queue("mail")
            sent = [b"before %d" % number for number in range(5)]
            await queue.enqueue(sent)
            assert (await server.get("/readyz")).status == 200
            other.write_bytes(bytes(36 << 20))

            accepted, error = await until_refused(queue)
            assert str(store) in error.message
            for _ in range(20):
                with pytest.raises(StoreUnavailable):
                    await queue.enqueue(b"refused")
            not_ready = await server.get("/readyz")
            assert not_ready.status == 503
            assert "enqueues are refused" in not_ready.json["reason"]
            text = await metrics_of(server)
            assert sample(text, "holdfast_store_accepts_enqueues") == 0
            assert sample(text, "holdfast_store_up") == 1
            assert (sample(text, "holdfast_store_refusals_total") or 0) >= 20
            assert (sample(text, "holdfast_store_free_bytes") or 0) < LOW_DISK_BYTES
            found = await asyncio.to_thread(doctor, server)
            assert found.returncode == 4, found.stderr
            assert "enqueues are refused" in found.stdout
            for message in await queue.claim(3):
                await message.ack()

            other.unlink()
            await until_ready(server, 200)
            await queue.enqueue(b"after")
            assert sample(await metrics_of(server), "holdfast_store_accepts_enqueues") == 1
            remaining: list[bytes] = []
            while messages := await queue.claim(1_000):
                remaining += [each.payload for each in messages]
            assert remaining == [*sent[3:], *accepted, b"after"]
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    [refusal] = events(server, "enqueues_refused")
    assert refusal["path"] == str(store)
    assert refusal["free_bytes"] < LOW_DISK_BYTES
    assert "are reserved" in refusal["cause"]
    assert len(events(server, "enqueues_accepted_again")) == 1
    verify_store(store, "after a full disk")


def on_failing_disk(tmp_path: Path, *arguments: str, options: tuple[str, ...] = ()) -> Served:
    return Served(
        *("--data", tmp_path / "store", "--reopen-after", "200ms", *arguments),
        environment={"LD_PRELOAD": str(build_shim())},
        program=("tests.server.failing_disk", str(tmp_path / "control"), str(tmp_path / "store"), *options),
    )


def tell(tmp_path: Path, what: str) -> None:
    fresh = tmp_path / "control.new"
    fresh.write_text(what)
    fresh.rename(tmp_path / "control")


@pytest.mark.spec("4.10")
@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_a_served_store_that_the_disk_stopped_reopens_by_itself(tmp_path: Path, durability: str) -> None:
    with on_failing_disk(tmp_path, "--durability", durability) as server:
        async with holdfast.open_async(server.url, retries=0) as hf:
            queue = hf.queue("mail")
            sent = [b"before %d" % number for number in range(10)]
            await queue.enqueue(sent)
            for message in await queue.claim(3):
                await message.ack()
            waiting = asyncio.create_task(hf.queue("empty").claim(1, wait="1m"))
            tell(tmp_path, "fail_sync" if durability == "fsync" else "fill_disk")

            accepted, error = await until_refused(queue)
            assert "reopens by itself" in error.message
            assert "has stopped" in (await until_ready(server, 503)).json["reason"]
            assert sample(await metrics_of(server), "holdfast_store_up") == 0
            assert "has stopped" in (await asyncio.to_thread(doctor, server)).stdout
            with pytest.raises(StoreUnavailable):
                await waiting

            tell(tmp_path, "")
            await until_ready(server, 200)
            assert sample(await metrics_of(server), "holdfast_store_stops_total") == 1
            await queue.enqueue(b"after")
            found = [each.payload for each in await queue.claim(1_000)]
            answered = [*sent[3:], *accepted]
            # The call that met the failure may have been carried out.
            assert found[: len(answered)] == answered
            assert found[len(answered) :] in ([b"after"], [b"meanwhile %d" % len(accepted), b"after"])
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    [stop] = events(server, "store_stopped")
    assert stop["path"] == str(tmp_path / "store")
    assert stop["free_bytes"] > 0
    assert stop["cause"]
    assert len(events(server, "store_reopened")) == 1
    assert "Traceback" not in server.log
    verify_store(tmp_path / "store", "after a reopening")


@pytest.mark.spec("4.10")
@pytest.mark.slow
async def test_a_server_whose_stopped_store_does_not_close_exits_and_the_next_one_continues(tmp_path: Path) -> None:
    with on_failing_disk(tmp_path, options=("stuck",)) as server:
        async with holdfast.open_async(server.url, retries=0) as hf:
            await hf.queue("mail").enqueue(b"before")
            tell(tmp_path, "fail_sync")
            accepted, _ = await until_refused(hf.queue("mail"))
            tell(tmp_path, "")
            assert await asyncio.to_thread(server.end) == 1, server.log
    [lost] = events(server, "store_lost")
    assert lost["path"] == str(tmp_path / "store")
    assert "restart the program" in lost["cause"]
    assert len(events(server, "server_exits")) == 1
    with Served("--data", tmp_path / "store") as server:
        async with holdfast.open_async(server.url) as hf:
            found = [each.payload for each in await hf.queue("mail").claim(1_000)]
            assert found[: 1 + len(accepted)] == [b"before", *accepted]
