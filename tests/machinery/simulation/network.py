"""The network between clients and a simulated server: it delays, loses and repeats what goes either way."""

from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.dice import Dice
from holdfast.model.answers import Delivery
from holdfast.model.errors import HoldfastError, Internal, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.server.compose import Core
from holdfast.service.access import Caller
from holdfast.service.session import Session
from holdfast.service.subscriptions import DeliveryStream
from holdfast.wire.operation import Operation
from holdfast.wire.operations import OPERATIONS
from tests.machinery.simulation.loop import SeededLoop, SimulatedTicket, Task
from tests.machinery.simulation.runtime import SimulatedRuntime

R = TypeVar("R")
A = TypeVar("A")

# How long a client waits for an answer, on top of what it asked the server to wait.
TIMEOUT_MS = 4_000
_USUAL_LATENCY_MS = 3
# Messages that a subscriber may hold unsettled.
_PREFETCH = 4
_CUT = "the connection was cut"


class NetworkRates(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each fault, for each direction of each call; and the longest delay."""

    loses: float = 0.0
    repeats: float = 0.0
    delays: float = 0.0
    delay_ms: int = 0


class Serving(NamedTuple):
    """A server that takes calls: its core, and the process that it is."""

    core: Core
    process: SimulatedRuntime


class _Call:
    __slots__ = (
        *("arguments", "connection", "has_arrived", "heard", "is_cut", "is_left", "is_repeated"),
        *("name", "running", "ticket", "who"),
    )

    def __init__(self, connection: "Remote", who: Caller, name: str, arguments: tuple[Any, ...]) -> None:
        self.connection = connection
        self.who = who
        self.name = name
        self.arguments = arguments
        self.ticket: SimulatedTicket[Any] = SimulatedTicket()
        self.running: list[Task] = []
        self.has_arrived = False
        self.is_repeated = False
        # The client is gone; or its connection is.
        self.is_left = False
        self.is_cut = False
        # The answer that the client took.
        self.heard: Any = None

    @property
    def is_repeatable(self) -> bool:
        """Return whether a client would repeat the call without an answer, because two calls have the effect of one."""
        match self.name:
            case "enqueue":
                return all(draft.key is not None for draft in self.arguments[1])
            case "claim" | "settle" | "get" | "peek" | "browse" | "stats":
                return True
            case _:
                return False

    @property
    def is_claim(self) -> bool:
        return self.name in ("claim", "next")

    @property
    def wait_ms(self) -> int:
        return self.arguments[2] or 0 if self.is_claim else 0

    def is_unseen(self, answer: Any) -> bool:
        """Return whether the answer delivers messages that are given back if nobody receives them. Messages claimed
        under a number stay claimed: the client reads them again by this number."""
        return self.is_claim and bool(answer) and self.arguments[1].ledger is None


class Network:
    def __init__(
        self,
        loop: SeededLoop,
        serving: Callable[[], Serving | None],
        dice: Dice,
        rates: NetworkRates,
        *,
        seen: Counter[str],
        on_heard: Callable[[str], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self.rates = rates
        self._loop = loop
        self._serving = serving
        self._roll = dice.roll
        self._seen = seen
        self._on_heard = on_heard
        self._on_broken = on_broken
        self._open: dict[_Call, None] = {}
        self._subscriptions: dict[tuple[Remote, QueueRef], tuple[SimulatedRuntime, DeliveryStream]] = {}

    async def call(self, connection: "Remote", who: Caller, name: str, arguments: tuple[Any, ...]) -> Any:
        """Send a request, and return the answer that reaches the client."""
        call = _Call(connection, who, name, arguments)
        self._open[call] = None
        call.is_repeated = call.is_repeatable and self._happens(self.rates.repeats, "repeated request")
        for _ in range(1 + call.is_repeated):
            self._travel("request", lambda: self._arrive(call))
        give_up_at = self._loop.now_ms + TIMEOUT_MS + call.wait_ms
        timer = self._loop.call_at(give_up_at, lambda: self._fail(call, "no answer came"))
        try:
            answer = await call.ticket
            self._on_heard(name)
            return answer
        except CancelledError:
            self._seen["caller left"] += 1
            if call.is_unseen(call.heard):
                # It came just as its caller left.
                self._loop.spawn(self._give_back(call, call.heard))
            raise
        finally:
            timer.cancel()
            del self._open[call]
            self._leave(call)

    def cut(self) -> None:
        """The server is gone, and every connection with it, with what nobody has read from it yet: nobody knows what
        became of his call."""
        for call in self._open:
            call.is_left = call.is_cut = True
            call.heard = None
            call.ticket.fail_instead(StoreUnavailable(_CUT))
            self._loop.call_at(self._loop.now_ms + self._latency_ms(), partial(self._fail, call, _CUT))

    # --- On the way ------------------------------------------------------------------------------------------------

    def _travel(self, what: str, arrive: Callable[[], None]) -> None:
        if not self._happens(self.rates.loses, f"lost {what}"):
            self._loop.call_at(self._loop.now_ms + self._latency_ms(), arrive)

    def _latency_ms(self) -> int:
        if self._happens(self.rates.delays, "delay"):
            return int(self._roll() * self.rates.delay_ms)
        return int(self._roll() * _USUAL_LATENCY_MS)

    def _happens(self, rate: float, what: str) -> bool:
        if rate and self._roll() < rate:
            self._seen[what] += 1
            return True
        return False

    def _leave(self, call: _Call) -> None:
        """Close the connection. The server notices a little later, and cancels the client's calls."""
        call.is_left = True
        for task in call.running:
            self._loop.call_at(self._loop.now_ms + self._latency_ms(), task.cancel)

    # --- The server's end ------------------------------------------------------------------------------------------

    def _arrive(self, call: _Call) -> None:
        if call.is_left:
            return
        serving = self._serving()
        if serving is None:
            # Refused before it was sent, unless the other copy of it got through.
            facts = {} if call.has_arrived or call.is_repeated else {"outcome": "nothing happened"}
            self._fail(call, "nobody listens there", **facts)
            return
        call.has_arrived = True
        task = serving.process.begin(self._serve(call, serving), lambda task: None)
        if task is not None:
            call.running.append(task)

    async def _serve(self, call: _Call, serving: Serving) -> None:
        """Serve a call as a door does: ask the session, and answer. Give back deliveries that cannot be sent."""
        session = Session(call.who, serving.core.services)
        error: HoldfastError | None = None
        answer: Any = None
        try:
            if call.name == "next":
                answer = await self._next(call, session, serving.process)
            else:
                answer = await self._carry_out(call, session)
        except HoldfastError as refusal:
            error = refusal
        except Exception as failure:
            self._on_broken(f"{call.name} failed: {failure!r}")
            error = Internal("the server failed to do this")
        if call.is_left:
            if call.is_unseen(answer):
                self._seen["given back"] += 1
                if not self._end_subscription(call, answer):
                    session.give_back(call.arguments[0], answer)
            return
        for _ in range(1 + self._happens(self.rates.repeats, "repeated reply")):
            self._travel("reply", lambda: self._answer(call, answer, error))

    async def _carry_out(self, call: _Call, session: Session) -> Any:
        operation = OPERATIONS[call.name]
        if operation.is_hot:
            return await getattr(session, call.name)(*call.arguments)
        return await session.call(operation, *call.arguments)

    async def _next(self, call: _Call, session: Session, process: SimulatedRuntime) -> list[Delivery]:
        """The next deliveries of a connection's subscription, which ends with its caller."""
        ref, ask, wait_ms = call.arguments
        known = self._subscriptions.get((call.connection, ref))
        if known is None or known[0] is not process:
            known = process, await session.subscribe(ref, ask, _PREFETCH)
            self._subscriptions[call.connection, ref] = known
        try:
            return await known[1].next(wait_ms)
        except BaseException:
            self._end_subscription(call, [])
            raise

    def _end_subscription(self, call: _Call, unsent: list[Delivery]) -> bool:
        """End the subscription that the call reads, if it reads one, and give back what it could not send."""
        known = self._subscriptions.pop((call.connection, call.arguments[0]), None)
        if known is None:
            return False
        known[1].give_back(unsent)
        self._loop.spawn(known[1].end())
        return True

    # --- The client's end ------------------------------------------------------------------------------------------

    def _answer(self, call: _Call, answer: Any, error: HoldfastError | None) -> None:
        if call.is_left or call.ticket.done():
            if call.is_unseen(answer) and answer is not call.heard and not call.is_cut:
                self._loop.spawn(self._give_back(call, answer))
            return
        call.heard = answer
        if call.is_repeated:
            answer, error = _as_of_several(call, answer, error)
        if error is not None:
            call.ticket.set_exception(error)
        else:
            call.ticket.set_result(answer)

    async def _give_back(self, call: _Call, unseen: list[Delivery]) -> None:
        """Give back messages that arrived after the caller had left, as a client does."""
        self._seen["heard late"] += 1
        verdicts = [Verdict(settle=Settle.UNSEND, receipt=each.receipt) for each in unseen]
        with suppress(HoldfastError):
            await self.call(call.connection, call.who, "settle", (call.arguments[0], verdicts))

    def _fail(self, call: _Call, why: str, **facts: str) -> None:
        if not call.ticket.done():
            call.ticket.set_exception(StoreUnavailable(why, **facts))


def _as_of_several(call: _Call, answer: Any, error: HoldfastError | None) -> tuple[Any, HoldfastError | None]:
    """Return the outcome of a call that was sent twice: one answer says nothing about the other try."""
    if error is not None:
        return None, StoreUnavailable(f"one of two tries answered: {error.message}")
    if call.name == "settle":
        verdicts = call.arguments[1]
        if any(verdict.settle is Settle.EXTEND for verdict in verdicts):
            return None, StoreUnavailable("of two extensions nobody knows which came last")
        return [result if result.ok else replace(result, is_unsure=True) for result in answer], None
    return answer, None


class Remote:
    """The messages of a transport: every method is a call over the network."""

    def __init__(self, network: Network, who: Caller) -> None:
        self._network = network
        self._who = who

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            return await self._network.call(self, self._who, name, arguments)

        setattr(self, name, call)
        return call


class Subscriber(Remote):
    """Its claims are the next messages of a subscription."""

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        deliveries: list[Delivery] = await self._network.call(self, self._who, "next", (ref, ask, wait_ms))
        return deliveries


class Bookkeeper(Remote):
    """Its claims stand in a ledger. One without an answer is made again under its number, and reads what it took."""

    def __init__(self, network: Network, who: Caller, name: str) -> None:
        super().__init__(network, who)
        self._name = name
        self._numbers: dict[QueueRef, int] = {}

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        number = self._numbers.setdefault(ref, 0)
        numbered = replace(ask, ledger=(self._name, number))
        deliveries: list[Delivery] = await self._network.call(self, self._who, "claim", (ref, numbered, wait_ms))
        if deliveries:
            self._numbers[ref] += 1
        return deliveries


class NetworkTransport:
    def __init__(self, remote: Remote) -> None:
        self.messages: Any = remote

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        answer: A = await getattr(self.messages, operation.name)(ref, request)
        return answer

    async def close(self) -> None:
        pass
