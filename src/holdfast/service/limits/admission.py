"""Admission: the limits of tenants and queues, and fair turns when the server is busy (SPEC 7.3, 8.7, 8.8).

A call passes three checks before it reaches the store:

    rates   The token buckets of the tenant and of the queue. A call without enough tokens is refused at once, with the
            time after which to retry.
    caps    The limits `max_claims` and `max_enqueues` on concurrent calls of a queue. A claim counts while it waits.
            Calls of a queue are served in their order; they all belong to one tenant.
    gate    The limit on concurrent enqueues of all tenants. Further enqueues take turns by the weights of the tenants.

The wait at a cap and at the gate is bounded; after it the call is refused. Verdicts (ack, nack, extend, release) pass
no check, because a refused ack would only lead to a second delivery. Stats pass none either; they cost little.

For a queue and a tenant without limits, admission costs two look-ups and a counter.
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
from holdfast.service.limits.buckets import Buckets, MemoryBuckets
from holdfast.service.limits.gate import Gate
from holdfast.service.policy_cache import PolicyCache

# The maximum number of concurrent enqueues. It is large enough for one sync of the disk to serve many of them, and
# small enough that a new tenant does not wait behind many enqueues of others.
MAX_IN_HAND = 256
# The maximum time that a call waits at a cap and at the gate, together.
MAX_WAIT_MS = 5_000

_RETRY_AFTER_MS = 1_000

Outcome = Literal["admitted", "waited", "limited", "refused"]


class Observer(Protocol):
    """A recorder of admission's decisions about calls that have a limit or had to wait."""

    def decided(self, ref: QueueRef, kind: Kind, outcome: Outcome) -> None:
        """Record a decision.

        The outcomes are `admitted` (within the limits), `waited` (admitted after a wait), `limited` (over a rate) and
        `refused` (after the longest wait, or because too many calls waited already).
        """

    def waited(self, ref: QueueRef, kind: Kind, ms: int) -> None:
        """Record the time that a call waited, whether it was admitted or not."""


class NoObserver:
    """An observer that records nothing."""

    def decided(self, ref: QueueRef, kind: Kind, outcome: Outcome) -> None:
        """Do nothing."""

    def waited(self, ref: QueueRef, kind: Kind, ms: int) -> None:
        """Do nothing."""


class Hold:
    """An admitted call, as a context manager around it.

    If the call raises an error, its tokens are returned, because the store did not do the work. If the caller is
    cancelled they are not, because the store may have done it.
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
        self._admission.release(self, is_unused=raised is not None and issubclass(raised, Exception))

    def remaining_ms(self, wait_ms: int | None) -> int | None:
        """Return the rest of a claim's `wait_ms`, after the time that it waited for admission."""
        return None if wait_ms is None else max(0, wait_ms - self.waited_ms)

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """Charge the deliveries of a claim."""
        self._admission.charge_read(self.ref, len(deliveries), sum(each.bytes for each in deliveries))


class Admission:
    """The admission of all calls of one server."""

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
        # The gates of queues with a cap, while they have calls.
        self._caps: dict[tuple[QueueRef, Kind], Gate] = {}

    def set_observer(self, observer: Observer) -> None:
        """Replace the observer."""
        self._observer = observer

    def set_buckets(self, buckets: Buckets) -> None:
        """Charge these buckets from now on."""
        self._buckets = buckets

    def is_limited(self, ref: QueueRef) -> bool:
        """Return whether the queue or its tenant has a limit."""
        return ref.tenant in self._tenant_limits or ref in self._queue_limits

    # --- Enqueues --------------------------------------------------------------------------------------------

    def enter_at_once(self, ref: QueueRef) -> Gate | None:
        """Admit an enqueue that has no limit and need not wait, and return the gate to leave afterwards.

        Otherwise return None; then call `admit_enqueue`. This is a shortcut for the most frequent case.
        """
        if ref.tenant in self._tenant_limits or ref in self._queue_limits or not self.gate.try_enter():
            return None
        return self.gate

    async def admit_enqueue(self, ref: QueueRef, drafts: list[Draft]) -> Hold:
        """Admit an enqueue. Each message is one operation; the call is charged whole or not at all.

        Raise `RateLimited` if a rate is used up, or if no turn comes within `MAX_WAIT_MS`.
        """
        size = sum(draft.bytes for draft in drafts)
        policy = self._queue_limits.get(ref)
        hold = await self._charge(ref, "write", len(drafts), size)
        cap = None if policy is None else policy.max_enqueues
        await self._wait_for_turn(hold, cap, MAX_WAIT_MS, gate_cost=cost_of(len(drafts), size))
        return hold

    # --- Claims and look-ups ---------------------------------------------------------------------------------

    async def admit_claim(self, ref: QueueRef, wait_ms: int | None) -> Hold:
        """Admit a claim.

        Each claim costs one operation in advance; otherwise claims on an empty queue would be free. Its further
        messages are charged afterwards (`Hold.delivered`), which may leave a debt that later claims have to wait for.

        Raise `RateLimited` if a rate is used up, or if no turn comes within `wait_ms` and `MAX_WAIT_MS`.
        """
        policy = self._queue_limits.get(ref)
        hold = await self._charge(ref, "read", 1, 1)
        cap = None if policy is None else policy.max_claims
        await self._wait_for_turn(hold, cap, min(wait_ms or MAX_WAIT_MS, MAX_WAIT_MS))
        return hold

    async def admit_look(self, ref: QueueRef) -> None:
        """Admit a look-up or a page of a listing. It is charged like a claim, but does not count towards `max_claims`.

        Call `charge_read` afterwards. Raise `RateLimited` if a rate is used up.
        """
        if self.is_limited(ref):
            await self._charge(ref, "read", 1, 1)

    def charge_read(self, ref: QueueRef, messages: int, size: int) -> None:
        """Charge the results of a claim or a look-up, without the operation and the byte charged in advance."""
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
        """Wait at the cap of the queue, then at the gate. On any error release the hold."""
        ref, kind, start_ms = hold.ref, hold.kind, self._runtime.clock.now_ms()
        until_ms = start_ms + max_wait_ms
        has_waited = False
        try:
            if cap is not None:
                has_waited = await self._pass(hold, self._cap_gate(hold, cap), 0, until_ms)
            if gate_cost is not None:
                has_waited |= await self._pass(hold, self.gate, gate_cost, until_ms)
        except BaseException as error:
            self.release(hold, is_unused=True)
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
        """Enter a gate, and return whether the call had to wait."""
        has_waited = not gate.try_enter()
        if has_waited:
            tenant = hold.ref.tenant
            if gate.is_full(tenant) or not await gate.enter(tenant, cost, until_ms):
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

    def release(self, hold: Hold, *, is_unused: bool) -> None:
        """End a call: leave its gates, and return its tokens if they were not used (`is_unused`)."""
        for gate in hold.gates:
            gate.leave()
        key = hold.ref, hold.kind
        if (cap_gate := self._caps.get(key)) is not None and cap_gate.is_idle:
            del self._caps[key]
        if is_unused and hold.charges:
            self._buckets.give_back(hold.charges, self._runtime.clock.now_ms())


def _over_rate(shortage: Shortage) -> RateLimited:
    charge, wait_ms = shortage
    owner = charge.owner
    of, facts = ("queue", owner._asdict()) if isinstance(owner, QueueRef) else ("tenant", {"tenant": owner})
    return RateLimited(
        f"{charge.limit} of {of} {owner} is {charge.per_s:g} and used up: try again in {wait_ms} ms",
        retry_after_ms=wait_ms,
        limit=charge.limit,
        of=of,
        **facts,
    )


def _over_cap(hold: Hold) -> RateLimited:
    ref = hold.ref
    cap, calls = ("max_claims", "claims") if hold.kind == "read" else ("max_enqueues", "enqueues")
    return RateLimited(
        f"queue {ref} has as many concurrent {calls} as its {cap} allows, and none ended in time: try again later",
        retry_after_ms=_RETRY_AFTER_MS,
        limit=cap,
        of="queue",
        tenant=ref.tenant,
        queue=ref.queue,
    )


def _over_gate() -> RateLimited:
    return RateLimited(
        "the server has reached its maximum of concurrent enqueues, and others are waiting: try again later",
        retry_after_ms=_RETRY_AFTER_MS,
        limit="enqueues in hand",
        of="server",
    )
