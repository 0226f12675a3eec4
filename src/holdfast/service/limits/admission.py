"""Admission: how much a tenant may ask of the server, and whose turn it is when all ask at once (SPEC 7.3, 8.7, 8.8).

Three things stand between a call and the store:

    rates   token buckets of the tenant and of the queue. What they do not cover is refused at once, and the refusal
            says when to ask again.
    caps    `max_claims` and `max_enqueues` of a queue: calls under way, a claim for as long as it waits. A queue has
            one tenant, so its own line is first come first served; fairness across tenants is the gate's.
    gate    enqueues in hand in the store, of all tenants. What exceeds it takes turns by the tenants' weights.

Who waits at a cap or at the gate waits a bounded time, then is refused. Verdicts (ack, nack, extend, release) pass none
of the three: a refused ack only makes work be done twice. Nor do stats, whose figures the store has at hand.

A queue without limits, of a tenant without limits, pays for two look-ups and a counter, and nothing is made for it.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from holdfast.dispatch.fairness import cost_of
from holdfast.model.answers import Delivery
from holdfast.model.errors import RateLimited
from holdfast.model.limits import Charge, Kind, Shortage, charges_of
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.runtime import Runtime
from holdfast.service.directory import PolicyCache
from holdfast.service.limits.buckets import Buckets, MemoryBuckets
from holdfast.service.limits.gate import Gate

# Enqueues in hand in the store: enough for one sync of the disk to serve many, few enough that a tenant that comes new
# never stands behind more than these.
MAX_IN_HAND = 256
# How long a call may wait at a cap and at the gate, together.
MAX_WAIT_MS = 5_000

_RETRY_AFTER_MS = 1_000

Outcome = Literal["admitted", "waited", "limited", "refused"]


class Observer(Protocol):
    """Told of what admission decided, where there was something to decide: a limit or a wait."""

    def decided(self, ref: QueueRef, kind: Kind, outcome: Outcome) -> None:
        """`admitted`: within its limits. `waited`: admitted after its turn came. `limited`: over a rate. `refused`: at
        the end of its wait, or because too many waited already."""

    def waited(self, ref: QueueRef, kind: Kind, ms: int) -> None:
        """However it ended."""


class NoObserver:
    def decided(self, ref: QueueRef, kind: Kind, outcome: Outcome) -> None:
        pass

    def waited(self, ref: QueueRef, kind: Kind, ms: int) -> None:
        pass


class Hold:
    """A call that was let in, for as long as it is under way: used by `with`.

    An error gives the tokens back: what the store refused or could not do was not had. A caller that leaves does not
    get them back, for the store may have done it all the same.
    """

    __slots__ = ("_admission", "charges", "gates", "kind", "ref", "waited_ms")

    def __init__(self, admission: "Admission", ref: QueueRef, kind: Kind, charges: list[Charge]) -> None:
        self._admission = admission
        self.ref = ref
        self.kind = kind
        self.charges = charges
        self.gates: list[Gate] = []
        self.waited_ms = 0

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, raised: type[BaseException] | None, *rest: object) -> None:
        self._admission.let_go(self, is_unused=raised is not None and issubclass(raised, Exception))

    def remaining_ms(self, wait_ms: int | None) -> int | None:
        """What is left of a claim's wait."""
        return None if wait_ms is None else max(0, wait_ms - self.waited_ms)

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        self._admission.read(self.ref, len(deliveries), sum(each.bytes for each in deliveries))


class Admission:
    def __init__(
        self,
        directory: PolicyCache,
        runtime: Runtime,
        *,
        buckets: Buckets | None = None,
        observer: Observer | None = None,
        max_in_hand: int = MAX_IN_HAND,
    ) -> None:
        self._directory = directory
        self._tenant_limits = directory.tenant_limits
        self._queue_limits = directory.queue_limits
        self._runtime = runtime
        self._buckets: Buckets = buckets or MemoryBuckets()
        self._observer: Observer = observer or NoObserver()
        self.gate = Gate(runtime, max_in_hand, directory.weight_of)
        # Of capped queues with calls under way.
        self._caps: dict[tuple[QueueRef, Kind], Gate] = {}

    def tell(self, observer: Observer) -> None:
        """Of everything from now on, instead of whoever was told before."""
        self._observer = observer

    def take_from(self, buckets: Buckets) -> None:
        """From now on these are charged."""
        self._buckets = buckets

    def is_limited(self, ref: QueueRef) -> bool:
        return ref.tenant in self._tenant_limits or ref in self._queue_limits

    # --- Enqueues --------------------------------------------------------------------------------------------

    def at_once(self, ref: QueueRef) -> Gate | None:
        """The way in for an enqueue that nothing limits and that nobody waits before; None: ask `enqueue`."""
        if ref.tenant in self._tenant_limits or ref in self._queue_limits or not self.gate.try_enter():
            return None
        return self.gate

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> Hold:
        """Each message is one operation; all of the call is charged or none of it."""
        size = sum(draft.bytes for draft in drafts)
        policy = self._queue_limits.get(ref)
        hold = await self._charge(ref, "write", len(drafts), size)
        cap = None if policy is None else policy.max_enqueues
        await self._wait_for_turn(hold, cap, MAX_WAIT_MS, gate_cost=cost_of(len(drafts), size))
        return hold

    # --- Claims and looks ------------------------------------------------------------------------------------

    async def claim(self, ref: QueueRef, wait_ms: int | None) -> Hold:
        """A claim costs one operation when it comes, be there something or not: else asking an empty queue over and
        over would be free. What it is given beyond that is charged after (`Hold.delivered`), into debt if need be; the
        claims that follow wait until the debt is paid."""
        policy = self._queue_limits.get(ref)
        hold = await self._charge(ref, "read", 1, 1)
        cap = None if policy is None else policy.max_claims
        await self._wait_for_turn(hold, cap, min(wait_ms or MAX_WAIT_MS, MAX_WAIT_MS))
        return hold

    async def look(self, ref: QueueRef) -> None:
        """A look-up or a page of a listing: charged as a claim, but it is no claim under way. `read` says the rest."""
        if self.is_limited(ref):
            await self._charge(ref, "read", 1, 1)

    def read(self, ref: QueueRef, messages: int, size: int) -> None:
        """What a claim or a look was given: of it, one operation and one byte were paid when it came."""
        if messages and self.is_limited(ref):
            charges = self._charges(ref, "read", messages - 1, max(0, size - 1))
            self._buckets.owe(charges, self._runtime.clock.now_ms())

    # --- Rates -----------------------------------------------------------------------------------------------

    def _charges(self, ref: QueueRef, kind: Kind, operations: int, size: int) -> list[Charge]:
        charges: list[Charge] = []
        if (limits := self._tenant_limits.get(ref.tenant)) is not None:
            charges += charges_of(limits, ref.tenant, kind, operations, size)
        if (policy := self._queue_limits.get(ref)) is not None:
            charges += charges_of(policy.limits, ref, kind, operations, size)
        return charges

    async def _charge(self, ref: QueueRef, kind: Kind, operations: int, size: int) -> Hold:
        charges = self._charges(ref, kind, operations, size)
        if charges and (shortage := await self._buckets.take(charges, self._runtime.clock.now_ms())) is not None:
            self._observer.decided(ref, kind, "limited")
            raise _over_rate(shortage)
        return Hold(self, ref, kind, charges)

    # --- Turns -----------------------------------------------------------------------------------------------

    async def _wait_for_turn(self, hold: Hold, cap: int | None, max_wait_ms: int, gate_cost: int | None = None) -> None:
        """Past the queue's cap, then past the gate. On any way out but the end the hold is let go."""
        ref, kind, start_ms = hold.ref, hold.kind, self._runtime.clock.now_ms()
        until_ms = start_ms + max_wait_ms
        has_waited = False
        try:
            if cap is not None:
                has_waited = await self._pass(hold, self._cap_gate(hold, cap), 0, until_ms)
            if gate_cost is not None:
                has_waited |= await self._pass(hold, self.gate, gate_cost, until_ms)
        except BaseException as error:
            self.let_go(hold, is_unused=True)
            if waited_ms := self._runtime.clock.now_ms() - start_ms:
                self._observer.waited(ref, kind, waited_ms)
            if isinstance(error, RateLimited):
                self._observer.decided(ref, kind, "refused")
            raise
        if has_waited:
            hold.waited_ms = self._runtime.clock.now_ms() - start_ms
            self._observer.waited(ref, kind, hold.waited_ms)
        if has_waited or hold.charges or cap is not None:
            self._observer.decided(ref, kind, "waited" if has_waited else "admitted")

    async def _pass(self, hold: Hold, gate: Gate, cost: int, until_ms: int) -> bool:
        """Answers whether it had to wait."""
        has_waited = not gate.try_enter()
        if has_waited:
            tenant = hold.ref.tenant
            if gate.is_line_full(tenant) or not await gate.enter(tenant, cost, until_ms):
                raise _over_gate() if gate is self.gate else _over_cap(hold)
        hold.gates.append(gate)
        return has_waited

    def _cap_gate(self, hold: Hold, cap: int) -> Gate:
        key = hold.ref, hold.kind
        gate = self._caps.get(key)
        if gate is None:
            gate = self._caps[key] = Gate(self._runtime, cap, self._directory.weight_of)
        gate.size = cap
        return gate

    def let_go(self, hold: Hold, *, is_unused: bool) -> None:
        """The call has ended; `is_unused` if what it was charged for did not happen."""
        for gate in hold.gates:
            gate.leave()
        key = hold.ref, hold.kind
        if (cap_gate := self._caps.get(key)) is not None and cap_gate.is_idle:
            del self._caps[key]
        if is_unused and hold.charges:
            self._buckets.give_back(hold.charges, self._runtime.clock.now_ms())


def _over_rate(shortage: Shortage) -> RateLimited:
    charge, wait_ms = shortage
    whose = charge.owner
    of, facts = ("queue", whose._asdict()) if isinstance(whose, QueueRef) else ("tenant", {"tenant": whose})
    return RateLimited(
        f"{charge.limit} of {of} {whose} is {charge.per_s:g} and used up: ask again in {wait_ms} ms",
        retry_after_ms=wait_ms,
        limit=charge.limit,
        of=of,
        **facts,
    )


def _over_cap(hold: Hold) -> RateLimited:
    ref = hold.ref
    cap, calls = ("max_claims", "claims") if hold.kind == "read" else ("max_enqueues", "enqueues")
    return RateLimited(
        f"queue {ref} has as many {calls} under way as its {cap} allows, and none ended in time: ask again later",
        retry_after_ms=_RETRY_AFTER_MS,
        limit=cap,
        of="queue",
        tenant=ref.tenant,
        queue=ref.queue,
    )


def _over_gate() -> RateLimited:
    return RateLimited(
        "the server has as many enqueues in hand as it takes, and others wait: ask again later",
        retry_after_ms=_RETRY_AFTER_MS,
        limit="enqueues in hand",
        of="server",
    )
