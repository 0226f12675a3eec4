"""The demo's workers: processes over HTTP, or tasks of this process where there is no server to be had."""

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
from holdfast.cli.demo.producers import KINDS, LEASE_S, DemoQueue, Task
from holdfast.cli.demo.worker_process import STARTED, handle, make_worker
from holdfast.model.errors import MessageNotFound, Unavailable
from holdfast.model.ids import MessageId
from holdfast.model.message import State
from holdfast.worker.outcomes import OutcomeKind

NAMES = ("worker-1", "worker-2", "worker-3")
VICTIM = NAMES[-1]
_START_S = 60.0
_END_S = 30.0
# Between two looks at what a worker holds; when both see the same, nothing is under way any more.
_LOOK_S = 0.05
_OUTCOMES = frozenset(OutcomeKind)


class DemoHeldMessage(NamedTuple):
    """A message in a worker's hands, and the version under which it is there."""

    kind: DemoQueue
    id: MessageId
    version: int


@dataclass
class Seat:
    """One worker as the view shows it."""

    name: str
    pid: int
    told: Counter[str] = field(default_factory=Counter)
    # What it held when it died; None: it did not.
    held: list["DemoHeldMessage"] | None = None
    is_killed: bool = False


class DemoWorkers(Protocol):
    seats: list[Seat]
    is_played: bool

    def check(self) -> None:
        """Raises if a worker ended that was not told to."""

    async def kill_one(self) -> Seat:
        """End the last worker without warning, in the middle of messages; what it held stands in its seat."""

    async def stop(self) -> None:
        """Let the others finish what they hold."""


async def held_by(hf: holdfast.AsyncHoldfast, owner: str) -> list[DemoHeldMessage]:
    found: list[DemoHeldMessage] = []
    for kind in KINDS:
        page = await hf.queue(kind.queue, tenant=kind.tenant).list(state=State.IN_FLIGHT, limit=1_000)
        found += [
            DemoHeldMessage(kind, MessageId(info.snowflake), info.version) for info in page if info.owner == owner
        ]
    return found


async def is_delivered_again(hf: holdfast.AsyncHoldfast, held: DemoHeldMessage) -> bool:
    """Whether it was claimed since; a message that is gone was acked by whoever claimed it."""
    try:
        info = await hf.queue(held.kind.queue, tenant=held.kind.tenant).get(held.id)
    except MessageNotFound:
        return True
    return info.version > held.version


async def _held_for_good(hf: holdfast.AsyncHoldfast, owner: str) -> list[DemoHeldMessage]:
    """What a worker that does nothing any more holds, once what it had sent is dealt with."""
    held = await held_by(hf, owner)
    while True:
        await asyncio.sleep(_LOOK_S)
        again = await held_by(hf, owner)
        if again == held:
            return held
        held = again


async def _kill_in_the_middle(
    hf: holdfast.AsyncHoldfast, owner: str, halt: Callable[[], Awaitable[None]], go_on: Callable[[], None]
) -> list[DemoHeldMessage]:
    """Halt the worker at a moment at which it holds messages."""
    while True:
        await halt()
        if held := await _held_for_good(hf, owner):
            return held
        go_on()
        await asyncio.sleep(_LOOK_S)


class ProcessDemoWorkers:
    is_played = False

    def __init__(self, hf: holdfast.AsyncHoldfast) -> None:
        self.seats: list[Seat] = []
        self._hf = hf
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._last_words: dict[str, deque[str]] = {}
        self._ready = {name: asyncio.Event() for name in NAMES}

    async def start(self, url: str, tasks: asyncio.TaskGroup) -> None:
        for name in NAMES:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast.cli.demo.worker_process", url, name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # A terminal's Ctrl-C is for us to judge.
                start_new_session=True,
            )
            seat = Seat(name, process.pid)
            self.seats.append(seat)
            self._processes[name] = process
            self._last_words[name] = deque(maxlen=20)
            self._readers.append(tasks.create_task(self._read(seat, process)))
        for name in NAMES:
            try:
                async with asyncio.timeout(_START_S):
                    await self._ready[name].wait()
            except TimeoutError:
                raise Unavailable(f"{name} did not start within {_START_S:g} s") from None
        self.check()

    def check(self) -> None:
        for seat in self.seats:
            code = self._processes[seat.name].returncode
            if code is not None and not seat.is_killed:
                raise Unavailable(f"{seat.name} ended with {code}: {' '.join(self._last_words[seat.name]) or 'silent'}")

    async def kill_one(self) -> Seat:
        seat = next(each for each in self.seats if each.name == VICTIM)
        process = self._processes[VICTIM]

        async def halt() -> None:
            process.send_signal(signal.SIGSTOP)

        # Halted first, so that what it holds can be read before it dies with it.
        held = await _kill_in_the_middle(self._hf, VICTIM, halt, lambda: process.send_signal(signal.SIGCONT))
        seat.is_killed = True
        process.kill()
        await process.wait()
        seat.held = held
        return seat

    async def stop(self) -> None:
        self.check()
        left = [self._processes[seat.name] for seat in self.seats if not seat.is_killed]
        for seat in self.seats:
            seat.is_killed = True
        for process in left:
            process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.gather(*(process.wait() for process in left), *self._readers)
        except TimeoutError:
            raise Unavailable(f"the workers did not end within {_END_S:g} s") from None

    def abandon(self) -> None:
        """Whatever happened, no process stays behind."""
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()

    async def _read(self, seat: Seat, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            word = line.decode("utf-8", "replace").strip()
            if word == STARTED:
                self._ready[seat.name].set()
            elif word in _OUTCOMES:
                seat.told[word] += 1
            else:
                self._last_words[seat.name].append(word)
        await process.wait()
        self._ready[seat.name].set()


class TaskDemoWorkers:
    """Workers in this process. The one that dies is a task that is cancelled: it gives nothing back."""

    is_played = True

    def __init__(self, hf: holdfast.AsyncHoldfast) -> None:
        self.seats = [Seat(name, os.getpid()) for name in NAMES]
        self._hf = hf
        self._workers = [make_worker(hf, seat.name, self._teller(seat)) for seat in self.seats if seat.name != VICTIM]
        self._serving: list[asyncio.Task[None]] = []
        self._victim: asyncio.Task[None] | None = None

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        self._serving = [tasks.create_task(worker.serve()) for worker in self._workers]
        self._go_on()

    def check(self) -> None:
        """A worker that fails ends the task group, and so the demo."""

    async def kill_one(self) -> Seat:
        seat = self.seats[-1]
        seat.held = await _kill_in_the_middle(self._hf, VICTIM, self._halt, self._go_on)
        seat.is_killed = True
        return seat

    async def stop(self) -> None:
        await self._halt()
        for worker in self._workers:
            worker.stop()
        await asyncio.gather(*self._serving)

    def _teller(self, seat: Seat) -> Callable[[str], None]:
        def tell(word: str) -> None:
            if word in _OUTCOMES:
                seat.told[word] += 1

        return tell

    def _go_on(self) -> None:
        self._victim = asyncio.create_task(self._work())

    async def _halt(self) -> None:
        if self._victim is not None:
            self._victim.cancel()
            await asyncio.wait({self._victim})

    async def _work(self) -> None:
        kind = next(each for each in KINDS if each.queue == "thumbnails")
        queue = self._hf.queue(kind.queue, tenant=kind.tenant)
        tell = self._teller(self.seats[-1])
        while True:
            for message in await queue.claim(limit=2, wait=1, lease=LEASE_S, owner=VICTIM):
                try:
                    await handle(message.json(Task), message)
                except ConnectionError as error:
                    await message.nack(str(error))
                    tell(OutcomeKind.RETRIED)
                else:
                    await message.ack()
                    tell(OutcomeKind.SUCCEEDED)


@asynccontextmanager
async def crew_of(
    hf: holdfast.AsyncHoldfast, tasks: asyncio.TaskGroup, *, is_one_process: bool
) -> AsyncIterator[DemoWorkers]:
    """Workers at work."""
    if is_one_process:
        played = TaskDemoWorkers(hf)
        await played.start(tasks)
        yield played
        return
    from holdfast.cli.demo.http_door import door_of

    async with door_of(hf) as url:
        crew = ProcessDemoWorkers(hf)
        try:
            await crew.start(url, tasks)
            yield crew
        finally:
            crew.abandon()
