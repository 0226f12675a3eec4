"""A worker whose verdicts the store cannot write for a while."""

import asyncio

import pytest

import holdfast
from holdfast.dice import SeededDice
from holdfast.server.embedded import open_on_loop
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock, with_unwritable_verdicts
from tests.worker.passing import passing, turns


@pytest.mark.parametrize("messages", [1, 3])
async def test_a_verdict_that_could_not_be_written_is_sent_again_until_it_is(clock: ManualClock, messages: int) -> None:
    unwritable: set[int] = set()
    outcomes: dict[str, str] = {}
    store = with_unwritable_verdicts(MemoryStore(SeededDice(0), 86_400_000), unwritable)
    async with open_on_loop("memory://", {}, clock=clock, store=store) as hf:
        worker = holdfast.Worker(hf, clock=clock, dice=SeededDice(1))

        @worker.handler("q", lease="30s")
        async def handle(message: holdfast.Message) -> None:
            pass

        @worker.after
        def note(message: holdfast.Message, outcome: holdfast.Outcome) -> None:
            outcomes[str(message.id)] = outcome.kind

        ids = await hf.queue("q").enqueue([{"n": each} for each in range(messages)])
        unwritable.add(ids[0].snowflake)
        async with worker:
            await passing(clock, 10_000)
            # The other messages are not held up by the one whose verdict has to wait.
            assert outcomes == {str(id): "succeeded" for id in ids[1:]}
            unwritable.clear()
            await passing(clock, 5_000)
        assert outcomes == {str(id): "succeeded" for id in ids}
        assert (await hf.queue("q").stats()).in_flight == 0


async def test_a_heartbeat_that_could_not_be_written_does_not_take_the_message_from_its_handler(
    clock: ManualClock,
) -> None:
    unwritable: set[int] = set()
    outcomes: list[str] = []
    gate = asyncio.Event()
    store = with_unwritable_verdicts(MemoryStore(SeededDice(0), 86_400_000), unwritable)
    async with open_on_loop("memory://", {}, clock=clock, store=store) as hf:
        worker = holdfast.Worker(hf, clock=clock, dice=SeededDice(1))

        @worker.handler("q", lease="30s")
        async def handle(message: holdfast.Message) -> None:
            await gate.wait()

        @worker.after
        def note(message: holdfast.Message, outcome: holdfast.Outcome) -> None:
            outcomes.append(outcome.kind)

        [id] = await hf.queue("q").enqueue(1)
        async with worker:
            await passing(clock, 5_000)
            unwritable.add(id.snowflake)
            await passing(clock, 15_000)
            unwritable.clear()
            await passing(clock, 60_000)
            assert outcomes == []
            gate.set()
            await turns()
        assert outcomes == ["succeeded"]
