"""`holdfast serve --stores N`: real processes that share one directory."""

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import HoldfastError, OverQuota, StoreUnavailable
from holdfast.stores.rocks.offline.backup import backup
from holdfast.stores.rocks.verify.store_check import verify
from tests.server.served import END_S, Served, urls_in

STORES = 3
# A process that takes the place of another may start beside other tests.
PATIENCE_S = 4 * END_S


def serve(data: Path, *arguments: str, stores: int = STORES, shards: int = 6) -> Served:
    return Served("--data", data, "--stores", str(stores), "--shards", str(shards), *arguments)


def http_url(server: Served) -> str:
    return urls_in(server.line)["url"]


def store_processes(server: Served) -> list[int]:
    """Return the process ids of the store processes beside the started one."""
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    return sorted(int(pid) for pid in children if b"store_process" in Path(f"/proc/{pid}/cmdline").read_bytes())


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def stop(server: Served) -> None:
    server.signal()
    assert await asyncio.to_thread(server.end) == 0, server.log
    assert "Traceback" not in server.log


def check(data: Path) -> None:
    assert verify(data).violations == []


def metrics(server: Served) -> dict[str, float]:
    with urllib.request.urlopen(http_url(server) + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


async def fill(hf: AsyncHoldfast, queues: int, messages: int) -> None:
    for number in range(queues):
        await hf.queue(f"q{number}").enqueue([f"{number}-{each}" for each in range(messages)])


async def every_producer_goes_on(acknowledged: dict[str, set[str]]) -> None:
    before = {queue: len(done) for queue, done in acknowledged.items()}
    await eventually(lambda: all(len(acknowledged[each]) > before[each] + 5 for each in before))


async def kill_one(server: Served) -> None:
    """Kill a store process, and wait for the one that takes its place."""
    [killed, *others] = store_processes(server)
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: len(set(store_processes(server)) - {killed}) == 1 + len(others))


async def test_queues_of_all_store_processes_are_one_store(tmp_path: Path) -> None:
    data = tmp_path / "store"
    with serve(data, "--processes", "2") as server:
        async with holdfast.open_async(http_url(server)) as hf:
            await fill(hf, 12, 5)
            names = [each.queue for each in await hf.queues()]
            assert names == sorted(f"q{number}" for number in range(12))
            assert (await hf.tenant("default").stats()).ready == 60
            for number in range(12):
                messages = await hf.queue(f"q{number}").claim(10)
                assert [json.loads(each.payload) for each in messages] == [f"{number}-{each}" for each in range(5)]
                await hf.queue(f"q{number}").ack(messages)
            events = await hf.journal(limit=1_000)
            assert len(events) == 12 * 15
            assert len({event.shard for event in events}) > STORES
        found = metrics(server)
        assert found["holdfast_queues"] == 12
        assert found["holdfast_store_processes"] == STORES
        assert found['holdfast_transitions_total{event="succeeded",tenant="default",queue="q3"}'] == 5
        await stop(server)
    check(data)


async def test_another_number_of_store_processes_opens_the_same_directory(tmp_path: Path) -> None:
    data = tmp_path / "store"
    for stores in (3, 2, 6, 1):
        with serve(data, stores=stores) as server:
            async with holdfast.open_async(http_url(server)) as hf:
                await fill(hf, 8, 1)
            await stop(server)
    with holdfast.open(data) as embedded:
        assert [each.ready for each in embedded.queues()] == [4] * 8
    check(data)


async def test_a_killed_store_process_loses_nothing_and_the_others_go_on(tmp_path: Path) -> None:
    data = tmp_path / "store"
    acknowledged: dict[str, set[str]] = {f"q{number}": set() for number in range(9)}
    doubtful: set[str] = set()
    refused_meanwhile: set[str] = set()
    is_over = False

    async def produce(hf: AsyncHoldfast, queue: str) -> None:
        number = 0
        while not is_over:
            payload, number = f"{queue}-{number}", number + 1
            try:
                await hf.queue(queue).enqueue(payload)
            except HoldfastError:
                doubtful.add(payload)
                refused_meanwhile.add(queue)
                await asyncio.sleep(0.05)
            else:
                acknowledged[queue].add(payload)

    with serve(data) as server:
        async with holdfast.open_async(http_url(server), retries=0) as hf:
            await fill(hf, 9, 0)
            for queue in acknowledged:
                await hf.queue(queue).set_policy(max_retries=1)
            producers = [asyncio.create_task(produce(hf, queue)) for queue in acknowledged]
            for _ in range(3):
                await every_producer_goes_on(acknowledged)
                await kill_one(server)
            await every_producer_goes_on(acknowledged)
            is_over = True
            await asyncio.gather(*producers)
            # The queues of the processes that were not killed were served all the time.
            assert set(acknowledged) - refused_meanwhile
        found: dict[str, list[str]] = {queue: [] for queue in acknowledged}
        async with holdfast.open_async(http_url(server)) as hf:  # with retries, unlike the producers
            for queue, payloads in found.items():
                while messages := await hf.queue(queue).claim(1_000):
                    payloads += [json.loads(message.payload) for message in messages]
        # A scrape returns the counts of the store process as they were up to a second ago.
        await eventually(lambda: metrics(server)["holdfast_store_process_ends_total"] == 3)
        await stop(server)
    for queue, payloads in found.items():
        assert len(payloads) == len(set(payloads))
        assert acknowledged[queue] <= set(payloads)
        assert set(payloads) - acknowledged[queue] <= doubtful
    check(data)


async def test_a_server_that_is_killed_as_a_whole_starts_again_at_once(tmp_path: Path) -> None:
    data = tmp_path / "store"
    with serve(data) as server:
        async with holdfast.open_async(http_url(server)) as hf:
            await fill(hf, 9, 3)
            assert (await hf.queue("q0").move("q1")).changed == 3
        server.signal(signal.SIGKILL)
        server.end()
    with serve(data) as server:
        async with holdfast.open_async(http_url(server)) as hf:
            assert {each.queue: each.ready for each in await hf.queues()} == {
                **{f"q{number}": 3 for number in range(2, 9)},
                "q0": 0,
                "q1": 6,
            }
        await stop(server)
    check(data)


async def test_quotas_hold_exactly_while_all_processes_race(tmp_path: Path) -> None:
    with serve(tmp_path / "store", "--processes", "2") as server:
        async with holdfast.open_async(http_url(server), retries=0) as hf:
            await hf.tenant("default").set(quotas={"max_messages": 200})

            async def enqueue(number: int) -> int:
                taken = tried = 0
                while tried < 40:
                    try:
                        await hf.queue(f"q{number}").enqueue(b"x")
                    except OverQuota:
                        tried += 1
                    except StoreUnavailable:
                        pass  # it gave up after many concurrent changes of the quota, and stored nothing
                    else:
                        tried += 1
                        taken += 1
                return taken

            assert sum(await asyncio.gather(*map(enqueue, range(12)))) == 200
            assert (await hf.tenant("default").stats()).ready == 200
            # Room that one process frees can be used in every other.
            [message] = await hf.queue("q0").claim()
            await message.ack()
            await hf.queue("q11").enqueue(b"x")
            with pytest.raises(OverQuota):
                await hf.queue("q5").enqueue(b"x")


async def test_a_quota_of_queues_holds_over_all_processes(tmp_path: Path) -> None:
    with serve(tmp_path / "store") as server:
        async with holdfast.open_async(http_url(server), retries=0) as hf:
            await hf.tenant("default").set(quotas={"max_queues": 10})

            async def create(number: int) -> bool:
                try:
                    await hf.queue(f"q{number}").enqueue(b"x")
                except OverQuota:
                    return False
                return True

            assert sum(await asyncio.gather(*map(create, range(30)))) == 10
            assert len(await hf.queues()) == 10


async def test_a_backup_has_each_message_once_while_messages_move_between_processes(tmp_path: Path) -> None:
    data = tmp_path / "store"
    # One shard in each process, so that every move goes to another process.
    with serve(data, shards=STORES) as server:
        async with holdfast.open_async(http_url(server)) as hf:
            await fill(hf, 6, 20)
            is_over = False

            async def move() -> None:
                while not is_over:
                    for number in range(6):
                        await hf.queue(f"q{number}").move(f"q{(number + 1) % 6}")

            moving = asyncio.create_task(move())
            for number in range(3):
                copied = await asyncio.to_thread(backup, data, tmp_path / f"copy-{number}")
                assert copied.files
            is_over = True
            await moving
        await stop(server)
    for number in range(3):
        check(tmp_path / f"copy-{number}")
        with holdfast.open(tmp_path / f"copy-{number}") as copy:
            assert sum(each.ready for each in copy.queues()) == 120


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--store", "memory://"), "stores is 3, but only an embedded store"),
        (("--data", "{data}", "--shards", "2"), "stores is 3, but shards is 2"),
        (("--data", "{data}"), "stores is 3, but {data} has 2 shards"),
    ],
)
def test_a_store_that_cannot_be_divided_is_refused_by_name(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    data = tmp_path / "store"
    with holdfast.open(data, shards=2):
        pass
    given = [each.format(data=data) for each in arguments]
    with pytest.raises(AssertionError) as refused, Served("--stores", "3", *given):
        pass
    assert said.format(data=data) in str(refused.value)
