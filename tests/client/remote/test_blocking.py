"""The blocking API over HTTP and frames: each call on a socket of the calling thread, from any number of threads."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

import holdfast
from holdfast.client.blocking import Holdfast, Queue
from tests.server.served import Served

PATIENCE_S = 30
_names = count()


@pytest.fixture(scope="module", params=["http", "framed"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    doors = () if request.param == "http" else ("--framed-port", "0")
    with Served("--store", "memory://", *doors) as served:
        yield served.url


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.open(url) as opened:
        yield opened


@pytest.fixture
def q(hf: Holdfast) -> Queue:
    """A queue of the test's own."""
    q = hf.queue(f"q{next(_names)}")
    q.set_policy(lease_ms=60_000)
    return q


def wait_for(q: Queue, field: str, number: int) -> None:
    for _ in range(PATIENCE_S * 1_000):
        if getattr(q.stats(), field) == number:
            return
        time.sleep(0.001)
    raise AssertionError(f"{field} should be {number}: {q.stats()}")


@pytest.mark.spec("10.1")
def test_a_message_goes_its_whole_way(q: Queue) -> None:
    ids = q.enqueue([{"order": 7}, b"raw"])
    first, second = q.claim(limit=2)
    with first:
        assert first.json() == {"order": 7}
    second.save_state({"at": 1})
    second.progress(50, "half")
    with pytest.raises(ZeroDivisionError), second:
        _ = 1 // 0
    assert q.get(ids[1]).last_error == "ZeroDivisionError: integer division or modulo by zero"
    with pytest.raises(holdfast.MessageNotFound):
        q.get(ids[0])


def test_many_threads_share_one_client(q: Queue) -> None:
    def work(number: int) -> list[str]:
        q.enqueue(number)
        [m] = q.claim(wait=10)
        m.ack()
        return [str(m.id)]

    with ThreadPoolExecutor(20) as pool:
        seen = Counter(id for mine in pool.map(work, range(100)) for id in mine)
    assert len(seen) == 100
    assert set(seen.values()) == {1}
    assert q.stats().ready == 0


def test_closing_lets_the_waiting_claims_of_other_threads_go_with_nothing(url: str, q: Queue) -> None:
    with ThreadPoolExecutor(2) as pool:
        with holdfast.open(url) as other:
            waiting = [pool.submit(other.queue(q.ref.queue).claim, wait=None) for _ in range(2)]
            wait_for(q, "waiters", 2)
        assert [each.result(PATIENCE_S) for each in waiting] == [[], []]
    wait_for(q, "waiters", 0)
    with pytest.raises(holdfast.StoreUnavailable, match="not connected"):
        other.queue("q")
    other.close()


def test_calls_are_made_in_the_calling_thread_and_start_none(url: str) -> None:
    before = set(threading.enumerate())
    with holdfast.open(url) as opened:
        q = opened.queue(f"q{next(_names)}")
        q.enqueue([1, 2])
        [message] = q.claim()
        message.ack()
        next(q.subscribe(prefetch=1)).ack()
        assert q.claim(wait=0.01) == []
        assert set(threading.enumerate()) == before
    assert set(threading.enumerate()) == before


def test_leaving_the_loop_over_a_subscription_gives_back_what_was_sent_ahead(q: Queue) -> None:
    q.enqueue(list(range(5)))
    for message in q.subscribe(prefetch=5, lease=3_600):
        message.ack()
        break
    wait_for(q, "ready", 4)


def test_ctrl_c_ends_a_wait_and_leaves_nothing_held(url: str, q: Queue) -> None:
    script = (
        "import sys, holdfast\n"
        "with holdfast.open(sys.argv[1]) as hf:\n"
        "    try: hf.queue(sys.argv[2]).claim(wait=None, lease=3600)\n"
        "    except KeyboardInterrupt: print('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, url, q.ref.queue], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(q, "waiters", 1)
        process.send_signal(signal.SIGINT)
        out, problems = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (out, problems) == ("interrupted\n", "")
    wait_for(q, "waiters", 0)
    q.enqueue(1)
    assert [m.version for m in q.claim()] == [1]


def test_a_client_opened_before_a_fork_works_in_the_child_too(q: Queue, url: str) -> None:
    """Run in a separate program: the tests' process has other threads, which a fork may not survive."""
    script = (
        "import os, sys, holdfast\n"
        "with holdfast.open(sys.argv[1]) as hf:\n"
        "    q = hf.queue(sys.argv[2])\n"
        "    q.enqueue(1)\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        q.enqueue(2)\n"
        "        sys.exit(0)\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, url, q.ref.queue]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert q.stats().ready == 2


@pytest.mark.parametrize("scheme", ["http", "holdfast"])
def test_opening_asks_nothing_of_the_server(scheme: str) -> None:
    with holdfast.open(f"{scheme}://127.0.0.1:1") as hf:
        q = hf.queue("q")
        with pytest.raises(holdfast.StoreUnavailable, match=rf"{scheme}://127\.0\.0\.1:1"):
            q.stats()
