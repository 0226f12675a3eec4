"""The blocking shell: the async API's answers, in the caller's own thread."""

import inspect
import io
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import holdfast
from holdfast.client.blocking import BlockingMessage, Holdfast, Queue, Tenant
from holdfast.client.client import AsyncHoldfast, AsyncTenant
from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue
from holdfast.testing import ManualClock

PATIENCE_S = 30


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open("memory://", clock=clock) as opened:
        yield opened


@pytest.mark.spec("10.1")
@pytest.mark.parametrize(
    ("shell", "core"),
    [
        (Queue, AsyncQueue),
        (Holdfast, AsyncHoldfast),
        (Tenant, AsyncTenant),
        (BlockingMessage, AsyncMessage),
    ],
)
def test_the_shell_has_every_call_of_the_async_api_with_the_same_parameters(shell: type, core: type) -> None:
    calls = {name for name, _ in inspect.getmembers(core, inspect.isfunction) if not name.startswith("_")}
    assert calls
    for name in calls:
        ours, theirs = (inspect.signature(getattr(each, name)).parameters for each in (shell, core))
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ], name


@pytest.mark.spec("2.4")
def test_twenty_threads_claiming_one_queue_get_each_message_once(hf: Holdfast) -> None:
    q = hf.queue("jobs")
    ids = q.enqueue([b"%d" % number for number in range(1_000)])
    claimed: Counter[str] = Counter()
    start = threading.Barrier(20)

    def claim_all() -> list[str]:
        mine: list[str] = []
        start.wait(PATIENCE_S)
        while messages := q.claim(limit=3, lease=3_600):
            mine += [str(message.id) for message in messages]
        return mine

    with ThreadPoolExecutor(20) as pool:
        for future in [pool.submit(claim_all) for _ in range(20)]:
            claimed.update(future.result(PATIENCE_S))
    assert claimed == Counter(map(str, ids))


def test_twenty_threads_waiting_are_each_handed_a_message_of_their_own(hf: Holdfast) -> None:
    q = hf.queue("jobs")
    q.set_policy(lease_ms=3_600_000)
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(q.claim, wait=None) for _ in range(20)]
        wait_for_waiters(q, 20)
        q.enqueue([b"x"] * 20)
        messages = [future.result(PATIENCE_S)[0] for future in waiting]
    assert len({message.receipt for message in messages}) == 20
    assert len({message.id for message in messages}) == 20


def test_a_waiting_claim_gives_up_when_its_time_is_over(hf: Holdfast, clock: ManualClock) -> None:
    q = hf.queue("jobs")
    q.set_policy()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(q.claim, wait=5)
        wait_for_waiters(q, 1)
        clock.advance(4_999)
        assert not waiting.done()
        clock.advance(1)
        assert waiting.result(PATIENCE_S) == []


def test_a_call_that_need_not_wait_starts_no_thread_and_stays_in_its_own(hf: Holdfast) -> None:
    q = hf.queue("jobs")
    before = set(threading.enumerate())
    q.enqueue(b"x")
    [message] = q.claim()
    message.ack()
    assert set(threading.enumerate()) == before


def test_closing_lets_waiting_claims_go_with_nothing() -> None:
    hf = holdfast.open("memory://")
    q = hf.queue("jobs")
    q.set_policy()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(q.claim, wait=None)
        wait_for_waiters(q, 1)
        hf.close()
        assert waiting.result(PATIENCE_S) == []


def test_a_closed_connection_says_so(hf: Holdfast) -> None:
    q = hf.queue("jobs")
    hf.close()
    with pytest.raises(holdfast.StoreUnavailable, match="closed"):
        q.enqueue(b"x")
    with pytest.raises(holdfast.StoreUnavailable):
        hf.queue("jobs")
    hf.close()


def test_subscribe_gives_messages_as_they_come(hf: Holdfast) -> None:
    q = hf.queue("jobs")
    q.enqueue([1, 2])
    messages = q.subscribe()
    seen = []
    for _ in range(2):
        with next(messages) as message:
            seen.append(message.json())
    with ThreadPoolExecutor(1) as pool:
        upcoming = pool.submit(next, messages)
        wait_for_waiters(q, 1)
        q.enqueue(3)
        assert upcoming.result(PATIENCE_S).json() == 3
    assert seen == [1, 2]


@pytest.mark.spec("10.1")
def test_a_message_in_a_with_block_is_acked_or_nacked_with_its_error(hf: Holdfast) -> None:
    q = hf.queue("jobs")
    good, bad = q.enqueue([1, 2])
    first, second = q.claim(limit=2)
    with first:
        pass
    with pytest.raises(ZeroDivisionError), second:
        _ = 1 // 0
    with pytest.raises(holdfast.MessageNotFound):
        q.get(good)
    assert q.get(bad).last_error == "ZeroDivisionError: integer division or modulo by zero"
    assert q.get(bad).failures == 1


def test_the_blocks_error_continues_even_if_the_nack_is_refused(hf: Holdfast, clock: ManualClock) -> None:
    q = hf.queue("jobs")
    q.enqueue(1)
    [message] = q.claim(lease=1)
    clock.advance(1_000)
    with pytest.raises(ZeroDivisionError) as raised, message:
        _ = 1 // 0
    assert "could not be nacked" in raised.value.__notes__[0]


def test_a_payload_can_be_written_to_a_file(hf: Holdfast) -> None:
    q = hf.queue("jobs")
    q.enqueue(b"some bytes")
    [message] = q.claim()
    file = io.BytesIO()
    assert message.write_to(file) == 10
    assert file.getvalue() == b"some bytes"


@pytest.mark.parametrize("url", ["", "memory://x", "nowhere://x"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(holdfast.InvalidArgument):
        holdfast.open(url)


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(holdfast.InvalidArgument, match="'durabilty'"):
        holdfast.open("memory://", durabilty="os")
    with pytest.raises(holdfast.InvalidArgument, match="max_payload"):
        holdfast.open("memory://", max_payload="lots")


def test_importing_holdfast_loads_neither_a_server_nor_a_store() -> None:
    script = (
        "import sys, holdfast; print([m for m in sys.modules if m.startswith(('holdfast.server', 'holdfast.stores'))])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def wait_for_waiters(q: Queue, number: int) -> None:
    """Until that many claims wait: other threads need a moment to get there."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 1_000):
        if q.stats().waiters >= number:
            return
        pause.wait(0.001)
    raise AssertionError(f"{number} claims should be waiting, {q.stats().waiters} are")
