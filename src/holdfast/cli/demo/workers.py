"""The demo's workers: processes that use HTTP, or tasks of this process if the server extra is missing."""

import asyncio
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import holdfast
from holdfast.cli.demo.producers import DEMO_QUEUES, LEASE_S, DemoQueue, Task
from holdfast.cli.demo.worker_process import STARTED, handle, make_worker
from holdfast.model.errors import MessageNotFound, Unavailable
from holdfast.model.ids import MessageId
from holdfast.model.message import State
from holdfast.runtime import Runtime, sleep_until
from holdfast.worker.outcomes import OutcomeKind

NAMES = ("worker-1", "worker-2", "worker-3")
VICTIM = NAMES[-1]
_START_S = 60.0
_END_S = 30.0
# The time between two readings of the messages that a worker holds. Two equal readings mean that no request is pending.
_READ_EVERY_MS = 50
_OUTCOMES = frozenset(OutcomeKind)


class DemoHeldMessage(NamedTuple):
    """A message that a worker has claimed, and its version."""

    demo_queue: DemoQueue
    id: MessageId
    version: int


@dataclass
class DemoWorker:
    """One worker: the outcomes that it reported, and its death."""

    name: str
    pid: int
    outcomes: Counter[str] = field(default_factory=Counter)
    # The messages that it held when it was killed. None if it was not killed.
    held_at_death: list["DemoHeldMessage"] | None = None
    # True once its end is expected.
    is_ending: bool = False


class DemoWorkers(Protocol):
    """All workers of the demo. `is_simulated` means that they are tasks of this process."""

    all: list[DemoWorker]
    is_simulated: bool

    def check(self) -> None:
        """Raise Unavailable if a worker has ended unexpectedly."""

    async def kill_one(self) -> DemoWorker:
        """Kill the last worker while it holds messages, and note them in its `held_at_death`."""

    async def stop(self) -> None:
        """Stop the remaining workers, after they have finished the messages that they hold."""


async def held_by(hf: holdfast.AsyncHoldfast, owner: str) -> list[DemoHeldMessage]:
    """Return the messages that a worker holds, in all queues."""
    found: list[DemoHeldMessage] = []
    for demo_queue in DEMO_QUEUES:
        page = await hf.queue(demo_queue.queue, tenant=demo_queue.tenant).list(state=State.IN_FLIGHT, limit=1_000)
        found += [
            DemoHeldMessage(demo_queue, MessageId(info.snowflake), info.version) for info in page if info.owner == owner
        ]
    return found


async def is_delivered_again(hf: holdfast.AsyncHoldfast, held: DemoHeldMessage) -> bool:
    """Return True if the message was claimed again. A message that is gone was claimed and acked by another worker."""
    try:
        info = await hf.queue(held.demo_queue.queue, tenant=held.demo_queue.tenant).get(held.id)
    except MessageNotFound:
        return True
    return info.version > held.version


async def _held_when_halted(hf: holdfast.AsyncHoldfast, runtime: Runtime, owner: str) -> list[DemoHeldMessage]:
    """Return the messages that a halted worker holds, after the requests that it had sent were handled."""
    held = await held_by(hf, owner)
    while True:
        await _pause(runtime)
        again = await held_by(hf, owner)
        if again == held:
            return held
        held = again


async def _halt_while_holding(
    hf: holdfast.AsyncHoldfast,
    runtime: Runtime,
    owner: str,
    halt: Callable[[], Awaitable[None]],
    resume: Callable[[], None],
) -> list[DemoHeldMessage]:
    """Halt and resume a worker until it is halted while it holds messages. Return them."""
    while True:
        await halt()
        if held := await _held_when_halted(hf, runtime, owner):
            return held
        resume()
        await _pause(runtime)


async def _pause(runtime: Runtime) -> None:
    await sleep_until(runtime, runtime.clock.now_ms() + _READ_EVERY_MS)


class ProcessDemoWorkers:
    """Workers in processes of their own, one of which is killed with SIGKILL."""

    is_simulated = False

    def __init__(self, hf: holdfast.AsyncHoldfast, runtime: Runtime) -> None:
        self.all: list[DemoWorker] = []
        self._runtime = runtime
        self._hf = hf
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._output: dict[str, deque[str]] = {}
        self._ready = {name: asyncio.Event() for name in NAMES}

    async def start(self, url: str, tasks: asyncio.TaskGroup) -> None:
        """Start the processes, and wait until each is ready. Raise Unavailable if one fails to start."""
        for name in NAMES:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast.cli.demo.worker_process", url, name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # In a session of its own, so that a terminal's Ctrl-C reaches only this process.
                start_new_session=True,
            )
            worker = DemoWorker(name, process.pid)
            self.all.append(worker)
            self._processes[name] = process
            self._output[name] = deque(maxlen=20)
            self._readers.append(tasks.create_task(self._read(worker, process)))
        for name in NAMES:
            try:
                async with asyncio.timeout(_START_S):
                    await self._ready[name].wait()
            except TimeoutError:
                raise Unavailable(f"{name} did not start within {_START_S:g} s") from None
        self.check()

    def check(self) -> None:
        for worker in self.all:
            code = self._processes[worker.name].returncode
            if code is not None and not worker.is_ending:
                output = " ".join(self._output[worker.name]) or "no output"
                raise Unavailable(f"{worker.name} exited with {code}: {output}")

    async def kill_one(self) -> DemoWorker:
        worker = next(each for each in self.all if each.name == VICTIM)
        process = self._processes[VICTIM]

        async def halt() -> None:
            process.send_signal(signal.SIGSTOP)

        def resume() -> None:
            process.send_signal(signal.SIGCONT)

        # The process is halted first, so that the messages that it holds can be read before it is killed.
        held = await _halt_while_holding(self._hf, self._runtime, VICTIM, halt, resume)
        worker.is_ending = True
        process.kill()
        await process.wait()
        worker.held_at_death = held
        return worker

    async def stop(self) -> None:
        self.check()
        remaining = [self._processes[each.name] for each in self.all if not each.is_ending]
        for worker in self.all:
            worker.is_ending = True
        for process in remaining:
            process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.gather(*(process.wait() for process in remaining), *self._readers)
        except TimeoutError:
            raise Unavailable(f"the workers did not end within {_END_S:g} s") from None

    def kill_all(self) -> None:
        """Kill the remaining processes."""
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()

    async def _read(self, worker: DemoWorker, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode("utf-8", "replace").strip()
            if text == STARTED:
                self._ready[worker.name].set()
            elif text in _OUTCOMES:
                worker.outcomes[text] += 1
            else:
                self._output[worker.name].append(text)
        await process.wait()
        self._ready[worker.name].set()


class TaskDemoWorkers:
    """Workers as tasks of this process. The killed one is a cancelled task, which does not release its messages."""

    is_simulated = True

    def __init__(self, hf: holdfast.AsyncHoldfast, runtime: Runtime) -> None:
        self.all = [DemoWorker(name, os.getpid()) for name in NAMES]
        self._hf = hf
        self._runtime = runtime
        self._workers = [make_worker(hf, each.name, self._counter(each)) for each in self.all if each.name != VICTIM]
        self._serving: list[asyncio.Task[None]] = []
        self._victim: asyncio.Task[None] | None = None

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the workers as tasks."""
        self._serving = [tasks.create_task(worker.serve()) for worker in self._workers]
        self._resume()

    def check(self) -> None:
        """Do nothing: a worker that fails ends the task group, and with it the demo."""

    async def kill_one(self) -> DemoWorker:
        worker = self.all[-1]
        worker.held_at_death = await _halt_while_holding(self._hf, self._runtime, VICTIM, self._halt, self._resume)
        worker.is_ending = True
        return worker

    async def stop(self) -> None:
        await self._halt()
        for worker in self._workers:
            worker.stop()
        await asyncio.gather(*self._serving)

    def _counter(self, worker: DemoWorker) -> Callable[[str], None]:
        def count(report: str) -> None:
            if report in _OUTCOMES:
                worker.outcomes[report] += 1

        return count

    def _resume(self) -> None:
        self._victim = asyncio.create_task(self._work())

    async def _halt(self) -> None:
        if self._victim is not None:
            self._victim.cancel()
            await asyncio.wait({self._victim})

    async def _work(self) -> None:
        thumbnails = next(each for each in DEMO_QUEUES if each.queue == "thumbnails")
        queue = self._hf.queue(thumbnails.queue, tenant=thumbnails.tenant)
        count = self._counter(self.all[-1])
        while True:
            for message in await queue.claim(limit=2, wait=1, lease=LEASE_S, owner=VICTIM):
                try:
                    await handle(message.json(Task), message)
                except ConnectionError as error:
                    await message.nack(str(error))
                    count(OutcomeKind.RETRIED)
                else:
                    await message.ack()
                    count(OutcomeKind.SUCCEEDED)


@asynccontextmanager
async def start_workers(
    hf: holdfast.AsyncHoldfast, tasks: asyncio.TaskGroup, runtime: Runtime, *, is_one_process: bool
) -> AsyncIterator[DemoWorkers]:
    """Start the workers as tasks or as processes. At the end of the block, no process is left."""
    if is_one_process:
        simulated = TaskDemoWorkers(hf, runtime)
        await simulated.start(tasks)
        yield simulated
        return
    from holdfast.cli.demo.http_door import serve_over_http

    async with serve_over_http(hf) as url:
        workers = ProcessDemoWorkers(hf, runtime)
        try:
            await workers.start(url, tasks)
            yield workers
        finally:
            workers.kill_all()
