"""A worker on a queue that does not exist says so once, and works as soon as it does."""

import asyncio

import pytest

import holdfast
from holdfast.model.errors import Forbidden
from holdfast.testing import ManualClock
from holdfast.worker.connection import client_of
from tests.worker.passing import PATIENCE_S, opened, until
from tests.worker.slow import Slow
from tests.worker.watched import watched


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "does not exist" in each.getMessage()]


async def test_a_worker_warns_once_of_each_queue_that_does_not_exist_with_close_names(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow()
    slow.let_go.set()
    async with opened(clock) as hf:
        for name in ("mail", "mails", "reports", "there"):
            await hf.queue(name).set_policy()
        await hf.queue("typo", tenant="acme").set_policy()
        worker = holdfast.Worker(hf, clock=clock)
        for name in ("mial", "typo", "there"):
            worker.handler(name)(slow)
        async with worker:
            await until(lambda: len(warnings(caplog)) == 2)
            await hf.queue("mial").enqueue([1, 2])
            await until(lambda: slow.done == [1, 2])

    first, second = sorted(warnings(caplog))
    assert first == (
        "queue_missing: queue default/mial does not exist yet; waiting for its first message. "
        "Existing queues with similar names: mail, mails"
    )
    assert second == (
        "queue_missing: queue default/typo does not exist yet; waiting for its first message. "
        "A queue of that name exists in tenant acme"
    )
    [record] = [each for each in caplog.records if each.getMessage() == first]
    assert (record.levelname, record.tenant, record.queue) == ("WARNING", "default", "mial")  # type: ignore[attr-defined]  # from extra


async def test_a_worker_that_may_not_list_queues_says_the_first_half(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(name: str) -> None:
        if name in ("queues", "tenants"):
            raise Forbidden("this credential is not for that")

    async with opened(clock) as hf:
        await hf.queue("mail").set_policy()
        worker = holdfast.Worker(client_of(watched(hf._connected(), refuse)), clock=clock)
        worker.handler("mial")(Slow())
        async with worker:
            await until(lambda: bool(warnings(caplog)))

    assert warnings(caplog) == ["queue_missing: queue default/mial does not exist yet; waiting for its first message"]


async def test_a_look_that_is_never_answered_keeps_no_worker_from_working_or_stopping(clock: ManualClock) -> None:
    slow = Slow()
    slow.let_go.set()

    looks: list[str] = []

    async def keep_waiting(name: str) -> None:
        if name == "names":
            looks.append(name)
            await asyncio.Event().wait()

    async with opened(clock) as hf:
        worker = holdfast.Worker(client_of(watched(hf._connected(), keep_waiting)), clock=clock)
        worker.handler("q")(slow)
        async with asyncio.timeout(PATIENCE_S), worker:
            await hf.queue("q").enqueue(1)
            await until(lambda: slow.done == [1])
    assert looks
