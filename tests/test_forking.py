"""A forked child: an embedded store is refused by name, a client of a server connects again, the parent continues."""

import asyncio
import fcntl
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.blocking import BlockingMessage, Holdfast, Queue
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.stores.buffered.log.wal import LogStopped, Wal
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.rocks.legacy.legacy_database import LegacyDatabase
from holdfast.stores.rocks.offline.backup_reader import CopyJournal
from holdfast.testing.children import in_child
from tests.machinery.legacy.databases import make_legacy
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer
from tests.server.served import Served

PATIENCE_S = 30
REFUSED = "opened before the process forked"

Opens = Callable[[], Holdfast]


def ask_child(function: Callable[[], Any]) -> Any:
    ended = in_child(function)
    assert not ended.hangs, "the child never came back"
    assert ended.signal is None
    assert ended.error is None, ended.error
    return ended.result


# --- Embedded --------------------------------------------------------------------------------------------------------


@pytest.fixture(
    params=[
        "memory",
        "rocks",
        "rocks without fsync",
        "objects",
        pytest.param("postgres", marks=pytest.mark.services),
        pytest.param("buffered", marks=pytest.mark.services),
    ]
)
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Opens:
    """Opens the same store each time; that in memory is another each time."""
    settings: dict[str, Any] = {}
    match request.param:
        case "memory":
            url = "memory://"
        case "rocks" | "rocks without fsync":
            url = str(tmp_path / "store")
            settings["durability"] = "os" if "without" in request.param else "fsync"
        case "objects":
            url = f"file://{tmp_path}/bucket"
        case _:
            postgres: PostgresServer = request.getfixturevalue("postgres")
            [url] = postgres.make_databases(f"forking_{request.param}")
            if request.param == "buffered":
                redis: RedisServer = request.getfixturevalue("redis_server")
                settings |= {"redis_url": redis.url, "wal_dir": str(tmp_path / "log")}
    return lambda: holdfast.open(url, **settings)


def refusals(hf: Holdfast, queue: Queue, held: BlockingMessage, begun: Iterator[BlockingMessage]) -> list[str]:
    """Calls in a child that were not refused by name."""
    calls: dict[str, Callable[[], object]] = {
        "enqueue": lambda: queue.enqueue(b"child"),
        "claim": lambda: queue.claim(wait=None),
        "ack": held.ack,
        "close of a message": held.close,
        "stats": queue.stats,
        "set_policy": lambda: queue.set_policy(max_retries=1),
        "queues": hf.queues,
        "a queue of its own": lambda: hf.queue("child").enqueue(b"child"),
        "upload": lambda: queue.upload([b"x" * 1_000]),
        "a subscription": lambda: next(queue.subscribe()),
        "a subscription that had begun": lambda: next(begun),
    }
    wrong = []
    for name, call in calls.items():
        try:
            wrong.append(f"{name}: {call()!r}")
        except StoreUnavailable as error:
            if REFUSED not in error.message:
                wrong.append(f"{name}: {error!r}")
    hf.close()
    gc.collect()
    return wrong


@pytest.mark.spec("4.9")
def test_a_forked_child_is_refused_at_once_and_the_parent_continues(opens: Opens) -> None:
    hf = opens()
    queue = hf.queue("mail")
    ids = queue.enqueue([b"1", b"2", b"3"])
    [held] = queue.claim(lease=600)
    begun = queue.subscribe(lease=600)
    seen = next(begun)
    for _ in range(2):
        assert ask_child(lambda: refusals(hf, queue, held, begun)) == []
    ids += queue.enqueue(b"4")
    held.ack()
    seen.ack()
    assert [message.id for message in queue.claim(5, lease=600)] == ids[2:]
    hf.close()
    with opens() as again:
        if again.tenants():
            assert again.queue("mail").stats().in_flight == 2


def test_a_child_is_refused_though_the_parents_lock_is_held_by_another_thread(tmp_path: Path) -> None:
    """The thread that would give the lock back does not exist in the child."""
    with holdfast.open(str(tmp_path / "store")) as hf:
        runtime = hf._driver.run.__self__
        is_held, is_over = threading.Event(), threading.Event()

        def hold() -> None:
            with runtime._lock:
                is_held.set()
                is_over.wait(PATIENCE_S)

        holder = threading.Thread(target=hold)
        holder.start()
        is_held.wait(PATIENCE_S)
        try:
            assert ask_child(lambda: error_of(lambda: hf.queue("mail").enqueue(b"x")))[0] == "StoreUnavailable"
        finally:
            is_over.set()
            holder.join()
        assert hf.queue("mail").enqueue(b"x")


def error_of(call: Callable[[], object]) -> tuple[str, str]:
    try:
        return "answered", repr(call())
    except HoldfastError as error:
        return type(error).__name__, error.message


@contextmanager
def living_child() -> Iterator[None]:
    """A child that lives on, with all that it has inherited."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_closing_in_the_parent_frees_the_directory_though_a_child_lives(tmp_path: Path) -> None:
    hf, log = holdfast.open(str(tmp_path / "store")), Wal(tmp_path / "log")
    with living_child():
        hf.close()
        holdfast.open(str(tmp_path / "store")).close()
        log.close()
        Wal(tmp_path / "log").close()


def test_a_lock_in_a_bucket_is_not_kept_by_a_child_that_was_forked_meanwhile(tmp_path: Path) -> None:
    """A thread of the parent may hold one at the fork. Kept by the child, it would stop every other process."""
    (tmp_path / ".holdfast/lock").mkdir(parents=True)
    bucket = DiskBucket(tmp_path)
    with ExitStack() as child, bucket._lock("a/key"):
        child.enter_context(living_child())
        [name] = (tmp_path / ".holdfast/lock").iterdir()
        child_stack = child.pop_all()
    with child_stack, name.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_legacy_database_is_free_once_closed_though_a_copy_of_its_lock_is_open(tmp_path: Path) -> None:
    """A child that was forked a moment ago has a copy of the lock's descriptor, and has not closed it yet."""
    make_legacy(tmp_path / "old", 5, seed=1, now_s=1_800_000_000)
    database = LegacyDatabase(tmp_path / "old")
    lock = database._files._lock
    assert lock is not None
    copy = os.dup(lock)
    try:
        database.close()
        LegacyDatabase(tmp_path / "old").close()
    finally:
        os.close(copy)


def test_a_legacy_database_is_free_once_the_parent_closes_it_though_a_child_lives(tmp_path: Path) -> None:
    make_legacy(tmp_path / "old", 5, seed=1, now_s=1_800_000_000)
    database = LegacyDatabase(tmp_path / "old")
    with living_child():
        database.close()
        LegacyDatabase(tmp_path / "old").close()


@pytest.mark.spec("4.9")
def test_a_child_does_not_free_the_parents_directory(tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "store")) as hf:
        ask_child(hf.close)
        other = [sys.executable, "-c", "import holdfast, sys; holdfast.open(sys.argv[1])", str(tmp_path / "store")]
        tried = subprocess.run(other, capture_output=True, text=True, timeout=PATIENCE_S)
        assert f"in use by process {os.getpid()}: " in tried.stderr


def test_a_log_takes_nothing_in_a_child_and_is_not_sealed_there(tmp_path: Path) -> None:
    log = Wal(tmp_path)
    log.make_room(100)
    log.append([(0, log.take_numbers(0, 1)[0], b"parent")])

    def use() -> str:
        try:
            log.append([(0, 1, b"child")])
        except LogStopped as error:
            log.close()
            return error.message
        return "appended"

    assert REFUSED in ask_child(use)
    log.append([(0, log.take_numbers(0, 1)[0], b"parent again")])
    log.close()
    again = Wal(tmp_path)
    assert [each.body for each in again.replay()] == [b"parent", b"parent again"]
    again.close()


def test_a_copy_is_refused_in_a_child(tmp_path: Path) -> None:
    holdfast.open(str(tmp_path / "store")).close()
    copy = CopyJournal(str(tmp_path / "store"), None)
    assert REFUSED in ask_child(lambda: error_of(lambda: copy.measure(None, 1, None)))[1]
    copy.close()


# A program that forks as programs do, and whose child ends as programs end.
FORKER = """
import multiprocessing, os, sys, warnings
import holdfast

warnings.simplefilter("ignore", DeprecationWarning)
path, how = sys.argv[1:]

def child():
    try:
        hf.queue("mail").enqueue(b"of the child")
    except holdfast.StoreUnavailable as error:
        print("refused:", error, flush=True)

hf = holdfast.open(path)
hf.queue("mail").enqueue([b"x" * 1000] * 100)
if how == "fork":
    pid = os.fork()
    if not pid:
        child()
        sys.exit(7)
    print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
elif how == "with":
    with hf:
        pid = os.fork()
        if pid:
            print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            hf.queue("mail").enqueue(b"after")
        else:
            child()
    if not pid:
        sys.exit(7)
elif how == "multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    print("status", process.exitcode, flush=True)
if how != "with":
    hf.queue("mail").enqueue(b"after")
    hf.close()
with holdfast.open(path) as again:
    print("ready", again.queue("mail").stats().ready, flush=True)
"""


@pytest.mark.parametrize(("how", "status"), [("fork", 7), ("with", 7), ("multiprocessing", 0)])
def test_a_program_that_forks_loses_nothing_and_its_child_ends_as_it_wants(
    tmp_path: Path, how: str, status: int
) -> None:
    command = [sys.executable, "-c", FORKER, str(tmp_path / "store"), how]
    run = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE_S)
    refused, *rest = run.stdout.splitlines()
    assert refused.startswith("refused:"), run.stderr
    assert REFUSED in refused
    assert rest == [f"status {status}", "ready 101"], run.stderr
    assert run.stderr == ""


# A program that opens in its children, as a server with workers does; with and without a store before the fork.
PREFORK = """
import os, sys, warnings
import holdfast

warnings.simplefilter("ignore", DeprecationWarning)
path, opens_before = sys.argv[1], sys.argv[2] == "before"
if opens_before:
    holdfast.open(path + "-of-the-parent").close()
for number in range(2):
    pid = os.fork()
    if not pid:
        try:
            with holdfast.open(path) as hf:
                hf.queue("mail").enqueue([b"x" * 100_000] * 10)
                print("ready", hf.queue("mail").stats().ready, flush=True)
        except holdfast.StoreUnavailable as error:
            print("refused:", error, flush=True)
        sys.exit(0)
    print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("when", ["after", "before"])
def test_a_store_is_opened_in_a_child_whose_parent_had_none_else_refused_by_name(tmp_path: Path, when: str) -> None:
    """RocksDB's threads stay in the parent: without them a store in the child would never end a flush."""
    command = [sys.executable, "-c", PREFORK, str(tmp_path / "store"), when]
    run = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE_S)
    lines = run.stdout.splitlines()
    if when == "after":
        assert lines == ["ready 10", "status 0", "ready 20", "status 0"], run.stderr
    else:
        assert [line for line in lines if "RocksDB's threads do not survive a fork" in line] == lines[::2], run.stderr
        assert lines[1::2] == ["status 0", "status 0"], run.stderr


# --- Servers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["http", "capnp", "framed"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server in a separate process, because one in this process would be forked too."""
    doors = () if request.param == "http" else (f"--{request.param}-port", "0")
    with Served("--store", "memory://", *doors) as server:
        yield server.url


def test_a_client_of_a_server_connects_anew_in_a_child(url: str) -> None:
    with holdfast.open(url) as hf:
        queue = hf.queue("mail")
        mine, child_acks = queue.enqueue([b"parent", b"child"])
        [held, other] = queue.claim(2, lease=600)

        def use() -> tuple[list[str], str, int]:
            other.ack()
            sent = queue.enqueue([b"1", b"2", b"3"])
            subscribed = next(queue.subscribe(lease=600))
            hf.close()
            return [str(each) for each in sent], str(subscribed.id), threading.active_count()

        sent, subscribed, _ = ask_child(use)
        assert subscribed == sent[0]
        held.ack()
        stats = queue.stats()
        assert (stats.ready, stats.in_flight) == (2, 1)
        assert (held.id, other.id) == (mine, child_acks)


def test_the_parents_calls_are_undisturbed_by_those_of_its_children(url: str) -> None:
    """A claim waits and another thread enqueues while children come, call and go."""
    rounds = 5
    with holdfast.open(url) as hf:
        waited: list[str] = []
        waiter = threading.Thread(target=lambda: waited.extend(m.id for m in hf.queue("waited").claim(wait=PATIENCE_S)))
        waiter.start()
        is_over, sent = threading.Event(), []

        def send() -> None:
            while not is_over.is_set():
                sent.extend(hf.queue("mail").enqueue(b"parent"))

        sender = threading.Thread(target=send)
        sender.start()
        of_children: list[str] = []
        for _ in range(rounds):
            of_children += ask_child(lambda: [str(hf.queue("mail").enqueue(b"child")[0]) for _ in range(20)])
        is_over.set()
        sender.join(PATIENCE_S)
        [expected] = hf.queue("waited").enqueue(b"at last")
        waiter.join(PATIENCE_S)
        assert waited == [expected]
        assert len({*sent, *of_children}) == len(sent) + 20 * rounds
        assert hf.queue("mail").stats().ready == len(sent) + 20 * rounds


def test_a_subscription_that_had_begun_is_refused_in_a_child(url: str) -> None:
    with holdfast.open(url) as hf:
        hf.queue("mail").enqueue([b"1", b"2"])
        begun = hf.queue("mail").subscribe(prefetch=1, lease=600)
        first = next(begun)
        assert REFUSED in ask_child(lambda: error_of(lambda: next(begun)))[1]
        first.ack()
        assert next(begun).payload == b"2"


def test_an_async_client_is_refused_in_a_child(url: str) -> None:
    """Its loop is the parent's. The law suite tries every call; here the parent's loop is in the middle of one."""

    async def run() -> None:
        async with holdfast.open_async(url) as hf:
            waiting = asyncio.ensure_future(hf.queue("mail").claim(wait=PATIENCE_S))
            sending = [asyncio.ensure_future(hf.queue("other").enqueue(b"x")) for _ in range(5)]
            await asyncio.sleep(0)
            assert (
                REFUSED
                in ask_child(lambda: error_of(lambda: asyncio.run(_first(hf.queue("other").enqueue(b"child")))))[1]
            )
            await asyncio.gather(*sending)
            [sent] = await hf.queue("mail").enqueue(b"at last")
            assert [each.id for each in await waiting] == [sent]
            assert (await hf.queue("other").stats()).ready == 5

    asyncio.run(run())


async def _first(work: Any) -> Any:
    return await work


# --- Workers ---------------------------------------------------------------------------------------------------------


def test_a_running_worker_is_refused_in_a_child_and_runs_on_in_the_parent(tmp_path: Path) -> None:
    async def run() -> None:
        worker = holdfast.Worker(str(tmp_path / "store"))
        handled = asyncio.Event()

        @worker.handler("mail")
        async def handle(payload: bytes) -> None:
            handled.set()

        async with worker:

            def use() -> list[str]:
                worker.stop()
                return [
                    error_of(worker.run)[1],
                    error_of(lambda: worker.client)[1],
                    error_of(lambda: worker.blocking_client)[1],
                ]

            for refused in ask_child(use):
                assert "was running before the process forked" in refused
            assert worker.is_running
            await worker.client.queue("mail").enqueue(b"x")
            await asyncio.wait_for(handled.wait(), PATIENCE_S)

    asyncio.run(run())


def test_a_worker_made_before_a_fork_has_a_name_of_its_own_in_each_child() -> None:
    worker, named = holdfast.Worker("memory://"), holdfast.Worker("memory://", owner="ours")
    owners = {worker.owner, *(ask_child(lambda: worker.owner) for _ in range(2))}
    assert len(owners) == 3
    assert ask_child(lambda: named.owner) == "ours"
