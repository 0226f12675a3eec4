"""The loop of a simulation: any order of ready steps, time that passes only on request, and sudden death."""

from asyncio import CancelledError
from typing import Any

import pytest

from holdfast.dice import SeededDice
from holdfast.runtime import sleep_until
from tests.machinery.simulation.loop import SeededLoop, SimulatedTicket, Stalled, Task
from tests.machinery.simulation.runtime import OffsetClock, SimulatedRuntime

START_MS = 1_000


def runtime_on(loop: SeededLoop, *, offset_ms: int = 0, has_turns: bool = True) -> SimulatedRuntime:
    broken: list[str] = []
    clock = OffsetClock(loop, offset_ms)
    return SimulatedRuntime(loop, clock, SeededDice(0), has_turns=has_turns, on_broken=broken.append)


def order_of(seed: int) -> list[int]:
    loop, order = SeededLoop(seed, START_MS), []

    async def work(number: int) -> None:
        order.append(number)

    async def main() -> None:
        for number in range(5):
            loop.spawn(work(number))
        await loop.sleep(10)

    loop.run(main())
    return order


def test_what_is_ready_continues_in_an_order_that_the_seed_chooses() -> None:
    assert order_of(1) == order_of(1)
    assert sorted(order_of(1)) == [0, 1, 2, 3, 4]
    assert len({tuple(order_of(seed)) for seed in range(20)}) > 10


def test_time_passes_when_nothing_is_ready_and_not_before() -> None:
    loop, rung = SeededLoop(0, START_MS), []

    async def main() -> None:
        for at_ms in (3_000, 2_000, 500):
            loop.call_at(at_ms, lambda at_ms=at_ms: rung.append((at_ms, loop.now_ms)))
        await loop.sleep(5_000)

    loop.run(main())
    assert rung == [(500, START_MS), (2_000, 2_000), (3_000, 3_000)]
    assert loop.now_ms == 6_000


def test_time_that_is_skipped_finds_everything_late() -> None:
    loop, rung = SeededLoop(0, START_MS), []

    async def main() -> None:
        loop.call_at(2_000, lambda: rung.append(loop.now_ms))
        loop.skip(10_000)
        await loop.sleep(0)
        await loop.sleep(1)

    loop.run(main())
    assert rung == [11_000]


def test_a_loop_in_which_everybody_waits_says_so() -> None:
    async def main() -> None:
        await SimulatedTicket()

    with pytest.raises(Stalled):
        SeededLoop(0, START_MS).run(main())


def test_a_loop_in_which_somebody_spins_says_so() -> None:
    loop = SeededLoop(0, START_MS)

    async def main() -> None:
        while True:
            await loop.sleep(0)

    with pytest.raises(Stalled):
        loop.run(main())


def test_a_task_is_cancelled_where_it_waits() -> None:
    loop, ticket = SeededLoop(0, START_MS), SimulatedTicket[int]()
    ended: list[Task] = []

    async def main() -> None:
        task = loop.spawn(_await(ticket), on_done=ended.append)
        await loop.sleep(1)
        task.cancel()
        await loop.sleep(1)

    loop.run(main())
    assert isinstance(ended[0].error, CancelledError)
    assert ticket.cancelled()


def test_a_task_is_cancelled_though_its_ticket_was_just_settled() -> None:
    """The result is there, but the task that waited for it is cancelled, as in asyncio."""
    loop, ticket = SeededLoop(0, START_MS), SimulatedTicket[int]()
    ended: list[Task] = []

    async def main() -> None:
        task = loop.spawn(_await(ticket), on_done=ended.append)
        await loop.sleep(1)
        ticket.set_result(7)
        task.cancel()
        await loop.sleep(1)

    loop.run(main())
    assert isinstance(ended[0].error, CancelledError)
    assert not ticket.cancelled()
    assert ticket.result() == 7


def test_a_ticket_is_settled_once() -> None:
    ticket = SimulatedTicket[int]()
    ticket.set_result(1)
    with pytest.raises(RuntimeError):
        ticket.set_result(2)
    failed = SimulatedTicket[int]()
    failed.set_exception(ValueError("no"))
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        failed.result()


def test_nothing_of_a_killed_process_continues() -> None:
    loop, done = SeededLoop(0, START_MS), []

    async def main() -> None:
        process = runtime_on(loop)

        async def work() -> None:
            try:
                await sleep_until(process, 2_000)
                done.append("a task went on")
            finally:
                process.spawn(late())

        async def late() -> None:
            done.append("what a task left behind")

        process.spawn(work())
        process.call_at(1_500, lambda: done.append("a timer"))
        process.at_turn_end(lambda: done.append("the end of a turn"))
        ticket: Any = process.offload(lambda: done.append("a thread"))
        await loop.sleep(0)
        done.clear()
        process.call_at(1_100, lambda: done.append("in its time"))
        await loop.sleep(200)
        assert done[-1] == "in its time"
        done.clear()
        process.kill()
        process.kill()
        await loop.sleep(5_000)
        assert ticket.done()

    loop.run(main())
    assert done == []


def test_a_process_goes_by_its_own_clock() -> None:
    loop, rung = SeededLoop(0, START_MS), []

    async def main() -> None:
        process = runtime_on(loop, offset_ms=-400)
        assert process.clock.now_ms() == START_MS - 400
        process.call_at(1_000, lambda: rung.append((loop.now_ms, process.clock.now_ms())))
        await loop.sleep(2_000)

    loop.run(main())
    assert rung == [(1_400, 1_000)]


def test_offloaded_calls_run_one_after_the_other_and_tell_their_errors() -> None:
    loop, ran = SeededLoop(0, START_MS), []

    def fail() -> None:
        raise OSError("no disk")

    async def main() -> None:
        process = runtime_on(loop)
        tickets = [process.offload(lambda number=number: ran.append(number)) for number in range(5)]
        failed = process.offload(fail)
        for ticket in tickets:
            await ticket
        with pytest.raises(OSError, match="no disk"):
            await failed

    loop.run(main())
    assert ran == [0, 1, 2, 3, 4]


def test_a_runtime_without_turns_has_none_to_end() -> None:
    with pytest.raises(RuntimeError):
        runtime_on(SeededLoop(0, START_MS), has_turns=False).at_turn_end(lambda: None)


def test_the_end_of_a_turn_comes_before_time_passes() -> None:
    loop, ended = SeededLoop(0, START_MS), []

    async def main() -> None:
        runtime_on(loop).at_turn_end(lambda: ended.append(loop.now_ms))
        await loop.sleep(100)

    loop.run(main())
    assert ended == [START_MS]


async def _await(ticket: SimulatedTicket[int]) -> int:
    return await ticket
