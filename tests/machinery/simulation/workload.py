"""The callers of a simulated server: producers, consumers, late ones, and an operator of each tenant."""

import random
from collections import Counter, deque
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any

from holdfast.client.client import AsyncHoldfast
from holdfast.client.transport import Transport
from holdfast.model.errors import HoldfastError
from holdfast.model.message import NewMessage, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Progress
from holdfast.model.scopes import ALL_SCOPES
from holdfast.service.access import Caller
from holdfast.wire.requests import StateRequest
from tests.machinery.history import ENDLESS, AsyncCaller, Recorder
from tests.machinery.simulation.loop import SeededLoop, Task
from tests.machinery.simulation.machine import Machine
from tests.machinery.simulation.network import Bookkeeper, Network, NetworkTransport, Remote, Subscriber
from tests.machinery.simulation.plan import DELAYS_MS, LEASES_MS, LONG_LEASE_MS, Plan

_GROUPS = ("a", "b")
_WAYS = ("claim", "claim", "claim", "next", "ledger")
_KEYS = 6
_THINKS_MS = 150
_OPERATOR_THINKS_MS = 1_000
# How long those stay at most who leave.
_STAYS_MS = (5, 300, 1_000)
_WAITS_MS = (0, 0, 30, 300, 2_000)
# What a consumer does with a message, by weight.
_ACTS = ("ack",) * 10 + ("nack", "nack", "final", "release", "defer", "extend", "extend", "forget")
_LATE_ACTS = ("ack", "nack", "release", "extend", "final", "defer")
_OPERATIONS = ("redrive", "redrive", "redrive", "pause", "reprioritise", "look", "look", "trespass")
_OPERATIONS_WITH_MOVES = (*_OPERATIONS, *("move",) * 8)
_REMOVALS = ("purge", "purge_failed", "cancel", "remove", "delete")


async def connect(network: Network, tenant: str, *, consumes_by: str = "claim", name: str = "") -> AsyncHoldfast:
    """`consumes_by`: claim, next (of a subscription) or ledger (the claims of `name`)."""
    who = _client_of(tenant)

    async def transport() -> Transport:
        match consumes_by:
            case "next":
                return NetworkTransport(Subscriber(network, who))
            case "ledger":
                return NetworkTransport(Bookkeeper(network, who, name))
            case _:
                return NetworkTransport(Remote(network, who))

    hf = AsyncHoldfast(transport)
    return await hf.__aenter__()


def _client_of(tenant: str) -> Caller:
    return Caller(tenant=tenant, scopes=ALL_SCOPES, subject=f"a client of {tenant}")


class Workload:
    """Calls on the server, as many as the plan says, by callers that come in the order of their own dice."""

    def __init__(
        self,
        seed: int,
        plan: Plan,
        loop: SeededLoop,
        machine: Machine,
        recorder: Recorder,
        seen: Counter[str],
        *,
        has_moves: bool,
    ) -> None:
        self._seed = seed
        self._plan = plan
        self._loop = loop
        self._machine = machine
        self._recorder = recorder
        self._seen = seen
        self._left = plan.operations
        self._operations = _OPERATIONS_WITH_MOVES if has_moves else _OPERATIONS
        self._names = 0
        # Receipts of leases, current, expired, settled, from before a crash: (queue, receipt).
        self._known: dict[str, deque[tuple[str, str]]] = {tenant: deque(maxlen=40) for tenant in plan.tenants}
        self._ids: dict[str, deque[int]] = {queue: deque(maxlen=20) for queue in plan.queues}

    async def run(self) -> None:
        """Until the operations are used up and every caller is at its end."""
        works = []
        for tenant in self._plan.tenants:
            works += [self._produce(tenant, number) for number in range(self._plan.producers)]
            works += [self._consume(tenant, number) for number in range(self._plan.consumers)]
            works.append(self._operate(tenant))
        await together(self._loop, works)

    def messages(self, dice: random.Random, queue: str, number: int) -> list[NewMessage]:
        return [self._message(dice, queue) for _ in range(number)]

    # --- Callers ---------------------------------------------------------------------------------------------------

    async def _produce(self, tenant: str, number: int) -> None:
        dice = random.Random(f"{self._seed} producer {tenant} {number}")
        caller = await self._caller(tenant)
        while await self._begin(dice):
            queue = self._queue(dice, tenant)
            ids = await self._or_leave(
                dice, caller.enqueue(queue, self.messages(dice, queue, dice.choice([1, 1, 2, 4])))
            )
            self._seen["enqueue"] += 1
            self._ids[queue].extend(ids or ())

    async def _consume(self, tenant: str, number: int) -> None:
        dice = random.Random(f"{self._seed} consumer {tenant} {number}")
        # A ledger keeps what its consumer has left, for it to come back to; in an orderly run nobody may.
        consumes_by = dice.choice(_WAYS[:-1] if self._plan.is_orderly else _WAYS)
        caller = await self._caller(tenant, consumes_by, f"consumer {number}")
        known = self._known[tenant]
        while await self._begin(dice):
            queue = self._queue(dice, tenant)
            lease_ms, wait_ms = dice.choice(LEASES_MS), dice.choice(_WAITS_MS)
            granted_ms = LONG_LEASE_MS if self._plan.is_orderly else lease_ms
            work = caller.claim(queue, dice.choice([1, 1, 2, 5]), lease_ms=granted_ms, wait_ms=wait_ms)
            deliveries = await self._or_leave(dice, work) or []
            self._seen[consumes_by] += 1
            receipts = [each.receipt for each in deliveries]
            known.extend((queue, receipt) for receipt in receipts)
            if dice.random() < 0.7:
                await self._loop.sleep(int(dice.random() * dice.choice([5, lease_ms, 2 * lease_ms])))
            if len(receipts) > 1 and dice.random() < 0.5:
                await self._settle(dice, caller, queue, "ack", receipts)
            else:
                for receipt in receipts:
                    await self._act(dice, caller, queue, receipt)
            if known and dice.random() < 0.25:
                queue, receipt = known[dice.randrange(len(known))]
                await self._settle(dice, caller, queue, dice.choice(_LATE_ACTS), [receipt])

    async def _act(self, dice: random.Random, caller: AsyncCaller, queue: str, receipt: str) -> None:
        verb = dice.choice(_ACTS)
        if dice.random() < 0.1:
            await self._note_progress(queue, receipt)
        if verb == "forget":
            if not self._plan.is_orderly:
                return
            verb = "ack"
        await self._settle(dice, caller, queue, verb, [receipt])
        if verb == "extend":
            await self._loop.sleep(int(dice.random() * 200))
            await self._settle(dice, caller, queue, "ack", [receipt])

    async def _note_progress(self, queue: str, receipt: str) -> None:
        tenant, _, name = queue.partition("/")
        self._seen["progress"] += 1
        remote = Remote(self._machine.network, _client_of(tenant))
        request = StateRequest(receipt=Receipt.parse(receipt), progress=Progress(percent=50))
        with suppress(HoldfastError):
            await remote.save_state(QueueRef(tenant, name), request)

    async def _settle(
        self, dice: random.Random, caller: AsyncCaller, queue: str, verb: str, receipts: list[str]
    ) -> None:
        options: dict[str, Any] = {}
        if verb == "extend":
            options["lease"] = f"{LONG_LEASE_MS if self._plan.is_orderly else dice.choice(LEASES_MS)}ms"
        elif verb in ("nack", "defer") and dice.random() < 0.7:
            options["delay"] = f"{dice.choice(DELAYS_MS)}ms"
        self._left -= 1
        self._seen[verb] += 1
        if self._plan.is_orderly:
            while not await caller.settle(queue, verb, receipts, **options):
                await self._loop.sleep(10)
        else:
            await self._or_leave(dice, caller.settle(queue, verb, receipts, **options))

    async def _operate(self, tenant: str) -> None:
        dice = random.Random(f"{self._seed} operator {tenant}")
        caller, hf = await self._caller(tenant), await connect(self._machine.network, tenant)
        while await self._begin(dice, _OPERATOR_THINKS_MS):
            queue = self._queue(dice, tenant)
            verb = dice.choice(self._operations) if dice.random() < 0.85 else dice.choice(_REMOVALS)
            self._seen[verb] += 1
            try:
                await self._or_leave(dice, self._operation(dice, caller, hf, queue, verb))
            except HoldfastError:
                continue  # of what the history does not tell

    async def _operation(
        self, dice: random.Random, caller: AsyncCaller, hf: AsyncHoldfast, name: str, verb: str
    ) -> None:
        queue = hf.queue(name.partition("/")[2], tenant=name.partition("/")[0])
        match verb:
            case "redrive":
                await caller.redrive(name)
            case "remove":
                if self._ids[name]:
                    await caller.remove(name, "remove", id=dice.choice(self._ids[name]))
            case "purge" | "purge_failed" | "cancel":
                await caller.remove(name, verb)
            case "delete":
                await caller.remove(name, "delete", force_after=f"{dice.choice([0, 100, 400])}ms")
                await self._loop.sleep(int(dice.random() * 500))
                await caller.set_policy(name, **self._plan.policies[name])
            case "move":
                await self._move(dice, caller, hf, queue.ref.tenant)
            case "pause":
                await queue.pause()
                await self._loop.sleep(int(dice.random() * 300))
                await queue.resume()
            case "reprioritise":
                await queue.reprioritise(dice.choice([1, 100, 200]))
            case "look":
                await queue.stats()
                await queue.list(limit=5)
                await queue.peek(3)
            case "trespass":
                others = [each for each in self._plan.queues if each.partition("/")[0] != queue.ref.tenant]
                if others:
                    await caller.claim(dice.choice(others), lease_ms=50)

    async def _move(self, dice: random.Random, caller: AsyncCaller, hf: AsyncHoldfast, tenant: str) -> None:
        """From the first queue that has messages of a state to another one of the tenant."""
        queues = [each for each in self._plan.queues if each.startswith(f"{tenant}/")]
        dice.shuffle(queues)
        state, limit = dice.choice(["ready", "ready", "failed"]), dice.choice([1, 1, 4])
        for source, target in pairwise([*queues, queues[0]]):
            if source == target:
                return  # there is no other
            found = await hf.queue(source.partition("/")[2], tenant=tenant).list(state, limit=limit)
            ids = [info.snowflake for info in found]
            if ids:
                self._seen["moved"] += await caller.move(source, target, ids, state=state)
                self._ids[target].extend(ids)
                return

    # --- Parts -----------------------------------------------------------------------------------------------------

    async def _caller(self, tenant: str, consumes_by: str = "claim", name: str = "") -> AsyncCaller:
        hf = await connect(self._machine.network, tenant, consumes_by=consumes_by, name=name)
        return AsyncCaller(hf, self._recorder, tenant)

    async def _begin(self, dice: random.Random, thinks_ms: int = _THINKS_MS) -> bool:
        """Think, and then do one more thing if one is left."""
        await self._loop.sleep(int(dice.random() ** 2 * thinks_ms))
        self._left -= 1
        return self._left >= 0

    def _queue(self, dice: random.Random, tenant: str) -> str:
        return dice.choice([queue for queue in self._plan.queues if queue.startswith(f"{tenant}/")])

    def _message(self, dice: random.Random, queue: str) -> NewMessage:
        self._names += 1
        name = f"{queue} {self._names}"
        options: dict[str, Any] = {
            "priority": dice.choice([100, 100, 100, 1, 200]),
            "max_retries": dice.choice([ENDLESS, 3, 1, 0]),
        }
        kind = dice.random()
        if kind < 0.35:
            options.update(group=dice.choice(_GROUPS), max_retries=ENDLESS)
        elif kind < 0.55:
            # The same keys come again, so that a call without an answer is made once more.
            key = f"key {dice.randrange(_KEYS)}"
            name = f"{queue} {key}"
            options.update(key=key, max_retries=ENDLESS)
        elif kind < 0.65:
            options["ttl"] = f"{dice.choice([1, 50, 400])}ms"
        if dice.random() < 0.25:
            options["delay"] = f"{dice.choice(DELAYS_MS)}ms"
        return NewMessage(name.encode(), **options)

    async def _or_leave(self, dice: random.Random, work: Coroutine[Any, Any, Any]) -> Any:
        """The answer to a call, or None if its caller left before it came."""
        if dice.random() >= self._plan.leaves:
            return await work
        ended = self._loop.ticket()
        task = self._loop.spawn(work, on_done=ended.set_result)
        if dice.random() < 0.7:
            # Just when it may be served.
            self._machine.at_next.setdefault(dice.choice(["enqueue", "claim"]), []).append(task.cancel)
        stays_ms = int(dice.random() * dice.choice(_STAYS_MS))
        timer = self._loop.call_at(self._loop.now_ms + stays_ms, task.cancel)
        done: Task = await ended
        timer.cancel()
        if isinstance(done.error, Exception):
            raise done.error
        return done.value


async def together(loop: SeededLoop, works: list[Coroutine[Any, Any, Any]]) -> None:
    """Wait until all have ended, and raise their first error."""
    left = len(works)
    ended = loop.ticket()
    errors: list[BaseException] = []

    def end(task: Task) -> None:
        nonlocal left
        left -= 1
        if task.error is not None:
            errors.append(task.error)
        if not left:
            ended.set_result(None)

    for work in works:
        loop.spawn(work, on_done=end)
    if works:
        await ended
    if errors:
        raise errors[0]
