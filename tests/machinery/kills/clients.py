"""The clients of servers that are killed: they live on, and write down what they were answered and what they were not.

    python -m tests.machinery.kills.clients URL,… HISTORY SEED RETRIES LEASE_FACTOR MAX_BACKLOG PATIENCE_S

goes on until its input ends, then drains the queues, for which every server must be up. A client whose call failed goes
to the next server, as one behind a balancer would. With RETRIES every other client repeats calls as often by itself;
the others try each call once, so that what a try may have done stands in the history.
"""

import asyncio
import os
import random
import sys
from contextlib import AsyncExitStack, suppress
from itertools import cycle
from pathlib import Path

from holdfast.client.client import AsyncHoldfast
from holdfast.client.http.transport import open_http_on_loop
from holdfast.clock import SystemClock, steady_s
from holdfast.model.errors import Unavailable
from tests.machinery import history as h
from tests.machinery.kills.load import POLICY, QUEUES, Load, Steps

PRODUCERS = 4
CONSUMERS = 4
_PAUSE_S = 0.005
# Between two tries while a server is down, and between two of the operator's verbs.
_DOWN_S = 0.02
_OPERATE_S = 0.02
_TIMEOUT_S = 10
# Consumers work for so long, and are away for so long: then what is enqueued lies wherever the servers leave it.
_WORK_S = (0.2, 0.8)
_LULL_S = (0.0, 0.5)
# A client makes this many calls at most, so that their numbers never meet.
_CALLS_PER_CLIENT = 10_000_000


class Client:
    """Its calls go to one of the servers until one fails, then to the next."""

    def __init__(self, number: int, servers: list[AsyncHoldfast], sink: h.FileSink) -> None:
        self._sink = sink
        self._has_failed = False
        self._at = number
        recorder = h.Recorder(self._say, SystemClock().now_ms, number * _CALLS_PER_CLIENT)
        self.callers = [h.AsyncCaller(hf, recorder) for hf in servers]

    def _say(self, line: h.Line) -> None:
        self._has_failed = self._has_failed or isinstance(line, h.Unknown | h.Refused)
        self._sink(line)

    async def run(self, script: Steps, day: "Day", every_s: float = 0.0, *, rests: bool = True) -> None:
        step = next(script)
        while not day.is_over.is_set():
            if rests:
                await day.works.wait()
            self._has_failed = False
            answer = None if step is None else await step(self.callers[self._at % len(self.callers)])
            self._at += self._has_failed
            pause_s = _DOWN_S if self._has_failed else _PAUSE_S if step is None else every_s
            if pause_s:
                await asyncio.sleep(pause_s)
            step = script.send(answer)


class Day:
    """The working hours of the clients."""

    def __init__(self, seed: int) -> None:
        self.is_over = asyncio.Event()
        self._over_s = 0.0
        self.works = asyncio.Event()
        self._dice = random.Random(f"{seed} day")

    def end(self) -> None:
        self._over_s = steady_s()
        self.is_over.set()

    async def wait_after(self, seconds: float) -> None:
        """Until the day is over for so long."""
        await asyncio.sleep(max(0.0, self._over_s + seconds - steady_s()))

    async def run(self) -> None:
        while not self.is_over.is_set():
            self.works.set()
            await asyncio.sleep(self._dice.uniform(*_WORK_S))
            self.works.clear()
            await asyncio.sleep(self._dice.uniform(*_LULL_S))
        self.works.set()


class Clients:
    def __init__(
        self, history: Path, seed: int, retries: int, lease_factor: int, max_backlog: int, patience_s: int
    ) -> None:
        self._sink = h.FileSink(history)
        self._load = Load(seed, 0, lease_factor=lease_factor, max_backlog=max_backlog)
        self._retries = retries
        self._patience_s = patience_s
        self._clients = 0
        self._day = Day(seed)

    async def run(self, urls: list[str]) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._hear)
        async with AsyncExitStack() as stack:
            once = await self._open(stack, urls, 0)
            often = await self._open(stack, urls, self._retries) if self._retries else once
            last = self._client(once)
            await self._set_policies(last.callers)
            os.write(1, b"working\n")
            async with asyncio.TaskGroup() as tasks:
                for each in range(PRODUCERS):
                    client = self._client(once if each % 2 else often)
                    tasks.create_task(client.run(self._load.produce(each), self._day, rests=False))
                for each in range(CONSUMERS):
                    client = self._client(once if each % 2 else often)
                    tasks.create_task(client.run(self._load.consume(each), self._day))
                tasks.create_task(self._client(once).run(self._load.operate(), self._day, _OPERATE_S))
                tasks.create_task(self._day.run())
                tasks.create_task(self._look(self._client(once).callers))
            await self._drain(last.callers)
        os.write(1, b"drained\n")

    async def _open(self, stack: AsyncExitStack, urls: list[str], retries: int) -> list[AsyncHoldfast]:
        settings = {"retries": retries, "timeout": _TIMEOUT_S}
        return [await stack.enter_async_context(open_http_on_loop(url, settings)) for url in urls]

    def _client(self, servers: list[AsyncHoldfast]) -> Client:
        self._clients += 1
        return Client(self._clients, servers, self._sink)

    def _hear(self) -> None:
        if not os.read(sys.stdin.fileno(), 1 << 10):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._day.end()

    async def _set_policies(self, callers: list[h.AsyncCaller]) -> None:
        for name in QUEUES:
            for caller in cycle(callers):
                try:
                    await caller.set_policy(name, **POLICY)
                    break
                except Unavailable:
                    await asyncio.sleep(_DOWN_S)

    async def _look(self, callers: list[h.AsyncCaller]) -> None:
        """Read the backlog repeatedly, because it cannot be counted here: kills interrupt calls."""
        for caller in cycle(callers):
            await self._day.works.wait()
            if self._day.is_over.is_set():
                return
            with suppress(Unavailable):
                self._load.backlog = await caller.backlog(QUEUES)
            await asyncio.sleep(0.2)

    async def _drain(self, callers: list[h.AsyncCaller]) -> None:
        # Each server is asked for its counts, and so brings what it has answered for to where all of them see it.
        for caller in callers:
            for name in QUEUES:
                await caller.count(name)
        await callers[0].drain(QUEUES)
        # And for its events: what one is moving nobody else can read; of one that was killed, once it is given up. Who
        # was killed had begun it before the day was over.
        await self._day.wait_after(self._patience_s)
        for caller in callers:
            await caller.bring_events()
        await callers[0].read_journal()


def main(urls: str, history: str, *numbers: str) -> None:
    asyncio.run(_main(urls.split(","), Path(history), *map(int, numbers)))


async def _main(urls: list[str], history: Path, *numbers: int) -> None:
    await Clients(history, *numbers).run(urls)


if __name__ == "__main__":
    main(*sys.argv[1:])
