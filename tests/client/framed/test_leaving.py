"""Framed calls that their callers leave: cancelled, timed out, interrupted or closed, they strand nothing."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.model.errors import StoreUnavailable
from holdfast.wire.framed.frames import FrameKind
from tests.client.framed.scripted import DELIVERY, ID, RECEIPT, WINDOW, Peer, scripted
from tests.client.remote.test_blocking import wait_for
from tests.client.remote.test_tls import LOOPBACK
from tests.server.certificates import Authority
from tests.server.served import Served
from tests.waiting import until

PATIENCE_S = 30
# The verdict on a delivery that reached nobody, as it stands in a call.
GIVEN_BACK = [["unsend", RECEIPT, None, None, False, False, False, None]]
SETTLED = [[ID, True, None, True, None, "ready"]]


def crossing(answer: Callable[[Peer, int], None]) -> Any:
    """Answer a cancelled call with a message, as if it had been on its way."""

    def script(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is FrameKind.CANCEL:
            answer(peer, call)
        elif kind is FrameKind.CALL and value[0] == "settle":
            peer.result(call, SETTLED)

    return script


def settled(seen: list[tuple[FrameKind, int, Any]]) -> list[Any]:
    return [value[4] for kind, _, value in seen if kind is FrameKind.CALL and value[0] == "settle"]


async def test_a_message_that_crossed_the_cancel_of_its_claim_is_given_back() -> None:
    script = crossing(lambda peer, call: peer.result(call, [[DELIVERY]]))
    async with scripted(script) as server, holdfast.open_async(server.url) as hf:
        waiting = asyncio.create_task(hf.queue("q").claim(wait=PATIENCE_S))
        await until(lambda: any(kind is FrameKind.CALL for kind, _, _ in server.seen))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert settled(server.seen) == [GIVEN_BACK]


async def test_closing_cancels_claims_and_gives_back_what_they_bring() -> None:
    script = crossing(lambda peer, call: peer.result(call, [[DELIVERY]]))
    async with scripted(script) as server:
        async with holdfast.open_async(server.url) as hf:
            waiting = asyncio.create_task(hf.queue("q").claim(wait=None))
            await until(lambda: any(kind is FrameKind.CALL for kind, _, _ in server.seen))
        assert await waiting == []
    assert settled(server.seen) == [GIVEN_BACK]


async def test_closing_gives_back_what_the_claims_of_threads_bring() -> None:
    script = crossing(lambda peer, call: peer.result(call, [[DELIVERY]]))
    async with scripted(script) as server:
        hf = holdfast.open(server.url)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(hf.queue("q").claim, wait=None)
            await until(lambda: any(kind is FrameKind.CALL for kind, _, _ in server.seen))
            await asyncio.to_thread(hf.close)
            assert await asyncio.wrap_future(waiting) == []
    assert settled(server.seen) == [GIVEN_BACK]


async def test_a_message_that_comes_after_its_claim_timed_out_is_given_back() -> None:
    script = crossing(lambda peer, call: peer.result(call, [[DELIVERY]]))

    def chatty(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is FrameKind.CALL and value[0] == "enqueue":
            peer.result(call, [[ID]])
        else:
            script(peer, kind, call, value)

    async with scripted(chatty) as server, holdfast.open_async(server.url, timeout=0.2, retries=0) as hf:
        claiming = asyncio.create_task(hf.queue("q").claim())
        while not claiming.done():  # the server is there, and slow with this one
            await hf.queue("q").enqueue(1)
            await asyncio.sleep(0.01)
        with pytest.raises(holdfast.StoreUnavailable, match="no response within"):
            await claiming
        await until(lambda: settled(server.seen) == [GIVEN_BACK])


async def test_a_subscription_that_is_left_before_its_first_message_gives_back_what_crossed() -> None:
    def item(peer: Peer, call: int) -> None:
        peer.send(FrameKind.ITEM, call, [[DELIVERY]])
        peer.send(FrameKind.RESULT, call, raw=b"\xc0")

    async with scripted(crossing(item)) as server, holdfast.open_async(server.url) as hf:
        reading = asyncio.ensure_future(anext(hf.queue("q").subscribe()))
        await until(lambda: any(kind is FrameKind.CALL for kind, _, _ in server.seen))
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await until(lambda: settled(server.seen) == [GIVEN_BACK])


async def test_a_subscription_is_read_without_a_call_and_settled_by_one_each() -> None:
    def send(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is FrameKind.CALL and value[0] == "subscribe":
            peer.send(FrameKind.ITEM, call, [[DELIVERY, DELIVERY]])
            peer.send(FrameKind.ITEM, call, [[DELIVERY]])
        elif kind is FrameKind.CALL:
            peer.result(call, SETTLED)

    async with scripted(send) as server, holdfast.open_async(server.url) as hf:
        messages = hf.queue("q").subscribe(prefetch=3)
        for _ in range(3):
            await (await anext(messages)).ack()
        assert server.peers[0].calls() == ["subscribe", "settle", "settle", "settle"]
        [call] = [value for kind, _, value in server.seen if kind is FrameKind.CALL and value[0] == "subscribe"]
        assert (call[4][0], call[5]) == (3, 3)


@pytest.fixture
def tls(tmp_path: Path) -> Any:
    authority = Authority(tmp_path)
    files = authority.sign("server", LOOPBACK)
    options = ["--store", "memory://", "--tls-cert", files.cert, "--tls-key", files.key, "--framed-port", "0"]
    with Served(*options) as served:
        yield served.url, authority.cert


def test_closing_lets_the_claims_of_threads_over_tls_go_with_nothing(tls: Any) -> None:
    url, ca = tls
    with holdfast.open(url, tls_ca=ca) as looking, ThreadPoolExecutor(3) as pool:
        q = looking.queue("q")
        q.set_policy(lease_ms=600_000)
        with holdfast.open(url, tls_ca=ca) as other:
            waiting = [pool.submit(other.queue("q").claim, wait=None) for _ in range(3)]
            wait_for(q, "waiters", 3)
        assert [each.result(PATIENCE_S) for each in waiting] == [[], [], []]
        wait_for(q, "waiters", 0)
        q.enqueue([1, 2, 3])
        assert [message.attempt for message in q.claim(3)] == [1, 1, 1]


# --- Uploads ---------------------------------------------------------------------------------------------------------


class Uploads:
    """A server that gives credit for what came, and holds clients to it."""

    def __init__(self, lost: int = 0, *, refuses: bool = False) -> None:
        # Answers that do not come, each with its connection.
        self._lost = lost
        self._refuses = refuses
        self._allowed: dict[tuple[int, int], int] = {}
        self.whole: list[int] = []
        self.came = 0
        self.most = 0

    def __call__(self, peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        key = peer.number, call
        if kind is FrameKind.CALL:
            self._allowed[key] = WINDOW
            self.came = 0
        elif kind is FrameKind.DATA:
            self.came += len(value)
            self.most = max(self.most, len(value))
            self._allowed[key] -= len(value)
            assert self._allowed[key] >= 0, "more than it was allowed to send"
            if self._refuses:
                peer.refuse(call, holdfast.PayloadTooLarge("too large"))
            elif not self._allowed[key]:
                self._allowed[key] = WINDOW
                peer.send(FrameKind.CREDIT, call, WINDOW)
        elif kind is FrameKind.END and self._lost:
            self._lost -= 1
            self.whole.append(self.came)
            peer.writer.close()
        elif kind is FrameKind.END:
            self.whole.append(self.came)
            peer.result(call, [[ID], [len(self.whole) > 1], [None]])


PAYLOAD = bytes(range(256)) * 4_096


@pytest.mark.spec("8.15")
async def test_an_upload_sends_no_more_than_it_has_credit_for() -> None:
    uploads = Uploads()
    async with scripted(uploads) as server, holdfast.open_async(server.url) as hf:
        await hf.queue("q").upload([PAYLOAD])
    assert uploads.whole == [len(PAYLOAD)]
    assert uploads.most <= 64 << 10


async def test_a_large_payload_that_is_enqueued_goes_in_parts_too() -> None:
    uploads = Uploads()
    async with scripted(uploads) as server:
        async with holdfast.open_async(server.url) as hf:
            await hf.queue("q").enqueue(PAYLOAD * 2)
        with holdfast.open(server.url) as blocking:
            await asyncio.to_thread(blocking.queue("q").enqueue, PAYLOAD * 2)
    assert uploads.whole == [2 * len(PAYLOAD)] * 2


async def test_an_upload_stops_at_its_refusal() -> None:
    uploads = Uploads(refuses=True)
    async with scripted(uploads) as server, holdfast.open_async(server.url) as hf:
        with pytest.raises(holdfast.PayloadTooLarge):
            await hf.queue("q").upload([PAYLOAD])
    assert uploads.came <= WINDOW


async def test_an_upload_whose_answer_was_lost_is_made_again_with_a_key_alone() -> None:
    uploads = Uploads(lost=1)
    async with scripted(uploads) as server, holdfast.open_async(server.url) as hf:
        with pytest.raises(holdfast.StoreUnavailable, match="may have been carried out") as lost:
            await hf.queue("q").upload([PAYLOAD])
        assert lost.value.facts["outcome"] == "unknown"
    uploads = Uploads(lost=2)
    async with scripted(uploads) as server, holdfast.open_async(server.url) as hf:
        assert (await hf.queue("q").enqueue(PAYLOAD * 2, key="k"))[0].duplicate
    assert uploads.whole == [2 * len(PAYLOAD)] * 3


async def test_an_upload_that_the_server_gave_up_is_raised_as_such() -> None:
    def give_up(peer: Peer, kind: FrameKind, call: int, value: Any) -> None:
        if kind is FrameKind.END:
            peer.refuse(call, StoreUnavailable("the disk is full"))

    async with scripted(give_up) as server, holdfast.open_async(server.url, retries=0) as hf:
        with pytest.raises(holdfast.StoreUnavailable, match="the disk is full"):
            await hf.queue("q").upload([b"x"])
