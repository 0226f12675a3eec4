"""The clients of a server that is killed: they live on, and write down what they were answered and what they were not.

    python -m holdfast.testing.kills.clients URL HISTORY SEED

goes on until its input ends, then drains the queues, for which the server must be up.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from holdfast.client.http.transport import open_http_on_loop
from holdfast.clock import SystemClock
from holdfast.model.errors import Unavailable
from holdfast.testing import history as h
from holdfast.testing.kills.load import POLICY, QUEUES, Load, Steps

PRODUCERS = 4
CONSUMERS = 4
_PAUSE_S = 0.005
# Between two tries while the server is down, and between two of the operator's verbs.
_DOWN_S = 0.02
_OPERATE_S = 0.02
# Each call is tried once: what a try of it may have done stands in the history.
_SETTINGS = {"retries": 0, "timeout": 10}


class Clients:
    def __init__(self, history: Path, seed: int) -> None:
        self._sink = h.FileSink(history)
        self._recorder = h.Recorder(self._say, SystemClock().now_ms)
        self._load = Load(seed, 0)
        self._failures = 0
        self._is_over = asyncio.Event()

    def _say(self, line: h.Line) -> None:
        self._failures += isinstance(line, h.Unknown | h.Refused)
        self._sink(line)

    async def run(self, url: str) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._hear)
        async with open_http_on_loop(url, _SETTINGS) as hf:
            caller = h.AsyncCaller(hf, self._recorder)
            for name in QUEUES:
                await self._set_policy(caller, name)
            os.write(1, b"working\n")
            async with asyncio.TaskGroup() as tasks:
                for number in range(PRODUCERS):
                    tasks.create_task(self._go_on(caller, self._load.produce(number)))
                for number in range(CONSUMERS):
                    tasks.create_task(self._go_on(caller, self._load.consume(number)))
                tasks.create_task(self._go_on(caller, self._load.operate(), _OPERATE_S))
                tasks.create_task(self._look(caller))
            for name in QUEUES:
                await caller.count(name)
            await caller.drain(QUEUES)
            await caller.read_journal()
        os.write(1, b"drained\n")

    def _hear(self) -> None:
        if not os.read(sys.stdin.fileno(), 1 << 10):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._is_over.set()

    async def _go_on(self, caller: h.AsyncCaller, script: Steps, every_s: float = 0.0) -> None:
        step = next(script)
        while not self._is_over.is_set():
            failures = self._failures
            answer = None if step is None else await step(caller)
            pause_s = _DOWN_S if self._failures > failures else _PAUSE_S if step is None else every_s
            if pause_s:
                await asyncio.sleep(pause_s)
            step = script.send(answer)

    async def _set_policy(self, caller: h.AsyncCaller, name: str) -> None:
        while True:
            try:
                await caller.set_policy(name, **POLICY)
                return
            except Unavailable:
                await asyncio.sleep(_DOWN_S)

    async def _look(self, caller: h.AsyncCaller) -> None:
        """How much there is: what was killed on its way is in no count of ours."""
        while not self._is_over.is_set():
            with suppress(Unavailable):
                self._load.backlog = await caller.backlog(QUEUES)
            await asyncio.sleep(0.2)


def main(url: str, history: str, seed: str) -> None:
    asyncio.run(_main(url, Path(history), int(seed)))


async def _main(url: str, history: Path, seed: int) -> None:
    await Clients(history, seed).run(url)


if __name__ == "__main__":
    main(*sys.argv[1:])
