"""A served directory that is watched, or polled where it is on a network file system, as seen from outside."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from asyncinotify import Inotify, Mask

import holdfast
from tests.server.served import Caller, Served
from tests.stores.objects.network_mount import KIND, network_mount

pytestmark = pytest.mark.slow

PATIENCE_S = 60


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The directory as it is on the machine that has it."""
    (tmp_path / "shown").mkdir()
    return tmp_path / "shown"


@pytest.fixture
def mount(tmp_path: Path, shown: Path) -> Iterator[Path]:
    """The same directory as other machines see it."""
    with network_mount(shown, tmp_path / "mount") as place:
        yield place


async def test_the_mount_of_these_tests_does_not_report_what_another_machine_writes(shown: Path, mount: Path) -> None:
    with Inotify() as inotify:
        inotify.add_watch(mount, Mask.CREATE | Mask.MOVED_TO)
        (shown / "by another machine").touch()
        (mount / "by this one").touch()
        async with asyncio.timeout(PATIENCE_S):
            assert str((await inotify.get()).name) == "by this one"
    assert (mount / "by another machine").exists()


async def claim(served: Served, queue: str) -> Caller:
    caller = await served.connect()
    caller.send("/v1/queue/dequeue", {"queue": queue, "wait_ms": 600_000})
    return caller


def enqueue_into(directory: Path, queue: str) -> None:
    """Enqueue in another program, so that the server is not notified."""
    with holdfast.open(directory.as_uri()) as hf:
        hf.queue(queue).enqueue(queue)


async def until_all_wait(served: Served, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S), holdfast.open_async(served.url) as hf:
        while (await hf.tenant("default").stats()).waiters < number:
            await asyncio.sleep(0.01)


def watches_of(served: Served) -> int:
    """Return how many directories the server's process watches, as the kernel says."""
    found = 0
    for info in Path(f"/proc/{served.process.pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += sum(line.startswith("inotify ") for line in info.read_text().splitlines())
    return found


async def until_watched(served: Served, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while watches_of(served) != number:
            await asyncio.sleep(0.01)


async def check_woken(served: Served, directory: Path, *, watches: int) -> None:
    """Let claims wait on two queues, and enqueue into both from outside."""
    queues = ["a", "b"]
    for queue in queues:
        await asyncio.to_thread(enqueue_into, directory, queue)
        assert [each["payload"] for each in (await (await claim(served, queue)).answer()).json["messages"]] == [queue]
    waiting = [await claim(served, queue) for queue in queues]
    await until_all_wait(served, len(queues))
    await until_watched(served, watches)
    for queue in queues:
        await asyncio.to_thread(enqueue_into, directory, queue)
    async with asyncio.timeout(PATIENCE_S):
        for caller, queue in zip(waiting, queues, strict=True):
            assert [each["payload"] for each in (await caller.answer()).json["messages"]] == [queue]
    await until_watched(served, 0)


async def end(served: Served) -> list[str]:
    """Stop the server, and return the lines of its log about polling."""
    served.signal(signal.SIGTERM)
    assert await asyncio.to_thread(served.end) == 0, served.log
    return [line for line in served.log.splitlines() if "polled" in line]


POLLING = ("--queue-poll-interval", "300ms", "--queue-poll-jitter", "0s")


@pytest.mark.spec("6.3")
async def test_on_a_network_file_system_queues_are_polled_and_the_server_says_so_once(shown: Path, mount: Path) -> None:
    with Served("--store", mount.as_uri(), *POLLING) as served:
        await check_woken(served, shown, watches=0)
        [line] = await end(served)
    assert str(mount) in line
    assert KIND in line


@pytest.mark.spec("6.3")
async def test_a_local_directory_is_watched_while_claims_wait(shown: Path) -> None:
    with Served("--store", shown.as_uri(), "--queue-poll-interval", "1h") as served:
        await check_woken(served, shown, watches=2)
        assert await end(served) == []


@pytest.mark.spec("6.3", "7.2")
async def test_without_disk_queue_watch_a_local_directory_is_polled(shown: Path) -> None:
    with Served("--store", shown.as_uri(), *POLLING, "--disk-queue-watch", "false") as served:
        await check_woken(served, shown, watches=0)
        assert await end(served) == []
