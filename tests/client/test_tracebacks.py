"""Errors in the caller's program: named as it imports them, raised by the method it called."""

import pickle
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.clock import SystemClock
from holdfast.dice import SeededDice
from holdfast.model.errors import ERRORS_BY_CODE
from holdfast.server.embedded import open_blocking, open_on_loop
from holdfast.stores.memory import MemoryStore
from holdfast.testing import with_faults
from tests.doors.capnp_serving import serve_capnp
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import serve
from tests.worker.passing import Outage

OURS = str(Path(holdfast.__file__).parent)


def frames_of_ours(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if frame.filename.startswith(OURS)]


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


async def _second_ack(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue({"n": 1})
    [message] = await q.claim()
    await message.ack()
    await message.ack()


async def _unknown_id(hf: AsyncHoldfast) -> None:
    await hf.queue("q").enqueue({"n": 1})
    await hf.queue("q").get("0190b5f2-4f5e-7000-8000-000000000000")


@pytest.mark.parametrize(
    ("call", "name"), [(_second_ack, "holdfast.StaleLease"), (_unknown_id, "holdfast.MessageNotFound")]
)
@pytest.mark.parametrize("door", ["http", "capnp", "framed", "embedded"])
async def test_an_error_names_the_public_class_and_shows_one_frame_of_ours(
    door: str, call: Callable[[AsyncHoldfast], Awaitable[None]], name: str
) -> None:
    async def check(url: str) -> None:
        async with holdfast.open_async(url) as hf:
            with pytest.raises(holdfast.HoldfastError) as raised:
                await call(hf)
        assert f"\n{name}: " in shown(raised.value)
        assert len(frames_of_ours(raised.value)) == 1
        assert "During handling" not in shown(raised.value)

    if door == "embedded":
        await check("memory://")
    else:
        serving: Any = {"http": serve, "capnp": serve_capnp, "framed": serve_framed}[door]
        async with serving(SystemClock()) as server:
            await check(server.url)


def test_a_blocking_call_shows_one_frame_of_ours_too() -> None:
    with holdfast.open("memory://") as hf:
        q = hf.queue("q")
        q.enqueue({"n": 1})
        [message] = q.claim()
        message.ack()
        with pytest.raises(holdfast.StaleLease) as raised:
            message.ack()
        assert len(frames_of_ours(raised.value)) == 1
        with pytest.raises(holdfast.InvalidName) as refused:
            hf.queue("no/slash")
        assert len(frames_of_ours(refused.value)) == 1
        assert "\nholdfast.InvalidName: " in shown(refused.value)


@pytest.mark.parametrize("url", ["http://host:port", "memory://"])
def test_an_opening_that_is_refused_shows_one_frame_of_ours_too(url: str) -> None:
    for opens in (holdfast.open, holdfast.open_async):
        with pytest.raises(holdfast.InvalidArgument) as refused:
            opens(url, no_such_setting=1)
        assert len(frames_of_ours(refused.value)) == 1


def test_a_frame_of_the_program_itself_is_never_cut_out() -> None:
    with holdfast.open("memory://") as hf:

        def source() -> Iterator[bytes]:
            yield b"some"
            hf.queue("q").get("0190b5f2-4f5e-7000-8000-000000000000")

        with pytest.raises(holdfast.HoldfastError) as raised:
            hf.queue("q").upload(source())
        assert "source" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]


async def test_an_internal_error_keeps_every_frame_for_its_report() -> None:
    outage = Outage()
    store = with_faults(MemoryStore(SeededDice(0), 86_400_000), outage)
    async with open_on_loop("memory://", {}, store=store) as hf:
        outage.begin("enqueue", error=holdfast.Internal("a bug"))
        with pytest.raises(holdfast.Internal) as raised:
            await hf.queue("q").enqueue({"n": 1})
        assert len(frames_of_ours(raised.value)) > 2


def test_every_frame_is_kept_for_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    with open_blocking("memory://", {}) as hf:
        with pytest.raises(holdfast.HoldfastError) as raised:
            hf.queue("q").get("0190b5f2-4f5e-7000-8000-000000000000")
        assert len(frames_of_ours(raised.value)) > 2


@pytest.mark.parametrize("kind", [*ERRORS_BY_CODE.values(), holdfast.LeaseLost], ids=lambda kind: kind.__name__)
def test_an_error_is_pickled_by_its_public_name(kind: type[holdfast.HoldfastError]) -> None:
    assert (kind.__module__, getattr(holdfast, kind.__name__)) == ("holdfast", kind)
    again = pickle.loads(pickle.dumps(kind("why", id="a")))
    assert (type(again), again.message, again.facts["id"], again.code) == (kind, "why", "a", kind.code)
