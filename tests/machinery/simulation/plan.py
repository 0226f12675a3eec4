"""The plan of a seed: its queues, callers and faults."""

import random
from typing import Any

import msgspec

from tests.machinery.simulation.disk import DiskRates
from tests.machinery.simulation.network import NetworkRates

_HOUR_MS = 3_600_000
_YEAR_MS = 365 * 24 * _HOUR_MS
# Longer than any clock steps: no key and no event is forgotten, so that each has to be there.
RETENTION_MS = 100 * _YEAR_MS

LEASES_MS = (40, 150, 150, 500, 1_500)
# Beyond the end of the run: what is left under such a lease was left by us.
LONG_LEASE_MS = 3_600_000
DELAYS_MS = (0, 0, 10, 100, 800)
BACKOFF_CAP_MS = 400
# After the last fault everything comes within this time, give or take what clocks were set back: two leases of the
# longest kind, a delay, and the sweeps between them.
LIVENESS_MS = 2 * max(LEASES_MS) + max(DELAYS_MS) + BACKOFF_CAP_MS + 1_200

# Tenants share the names of queues: what crosses over would not be seen otherwise.
_QUEUES = (
    ("acme/mail",),
    ("acme/mail", "zeta/mail"),
    ("acme/mail", "acme/pay", "zeta/mail"),
    ("acme/mail", "acme/pay", "zeta/mail", "zeta/pay"),
)
# By how much a clock is set.
_STEPS_MS = (300, 60_000, _HOUR_MS, 2 * _YEAR_MS, -50, -300, -2_000, -_HOUR_MS)
# In which the faults of a run lie mostly.
_SPAN_MS = 2_500


class Blow(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of the machine. `kind`: crash, power cut, close or pause; `ms`: the length of a pause, or the step of the
    clock before the next start. It comes at a time, or with one of the machine's events."""

    at_ms: int = 0
    at_event: int = 0
    kind: str
    ms: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    operations: int
    policies: dict[str, dict[str, Any]]
    producers: int
    consumers: int
    has_turns: bool
    claims_inline: bool
    # Nothing is lost on the way and nobody crashes, and every consumer settles what it was handed, under a lease that
    # would outlive the run. So whatever is still in flight at the end was handed to nobody.
    is_orderly: bool
    # How likely a caller leaves in the middle of a call.
    leaves: float
    network: NetworkRates
    disk: DiskRates
    blows: list[Blow]
    # When everybody is at his end, once more: whatever the leases of then need is to come from what is on disk.
    ends_with_crash: bool
    # Between two ticks of a schedule; None: there is none.
    ticks_every_ms: int | None
    # How likely time passes between two steps, and how likely a step that is ready is late.
    drag: float
    lag: float
    calm_network: NetworkRates = NetworkRates()

    @property
    def queues(self) -> list[str]:
        return list(self.policies)

    @property
    def tenants(self) -> list[str]:
        return list(dict.fromkeys(queue.partition("/")[0] for queue in self.policies))

    @property
    def set_back_ms(self) -> int:
        return -sum(min(0, blow.ms) for blow in self.blows)


def plan_of(seed: int, operations: int) -> Plan:
    dice = random.Random(f"{seed} plan")
    is_orderly = dice.random() < 0.25
    # A run with every fault at once explores little of each: most have some.
    has_network, has_disk, has_blows = (not is_orderly and dice.random() < share for share in (0.7, 0.4, 0.7))
    blows = [_blow(dice) for _ in range(dice.choice([1, 1, 2, 3, 4]))] if has_blows else []
    return Plan(
        operations=operations,
        policies={queue: _policy(dice) for queue in dice.choice(_QUEUES)},
        producers=dice.choice([1, 1, 2]),
        consumers=dice.choice([1, 2, 3, 4]),
        has_turns=dice.random() < 0.7,
        claims_inline=dice.random() < 0.5,
        is_orderly=is_orderly,
        leaves=0.5 if is_orderly else dice.choice([0.0, 0.2, 0.5]),
        network=_network(dice) if has_network else NetworkRates(),
        disk=_disk(dice, fails=has_disk),
        blows=blows,
        # Not where the end of the run takes an hour: that would be ticks and little else.
        ticks_every_ms=2_000 if dice.random() < 0.25 and all(blow.ms > -_HOUR_MS for blow in blows) else None,
        ends_with_crash=not is_orderly and dice.random() < 0.3,
        drag=0.5 if is_orderly else dice.choice([0.01, 0.1, 0.5]),
        lag=0.3 if is_orderly else dice.choice([0.0, 0.0, 0.3]),
    )


def _policy(dice: random.Random) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "backoff_base_ms": 5,
        "backoff_cap_ms": BACKOFF_CAP_MS,
        "dedup_window_ms": RETENTION_MS,
        "lease_ms": dice.choice(LEASES_MS),
    }
    if dice.random() < 0.3:
        policy["on_ttl"] = "drop"
    if dice.random() < 0.2:
        policy["keep_succeeded_ms"] = dice.choice([20, 100])
    if dice.random() < 0.15:
        policy["max_claims"] = dice.choice([1, 2])
    if dice.random() < 0.15:
        policy["max_enqueues"] = 1
    if dice.random() < 0.1:
        policy["limits"] = {"write_ops_per_s": 20, "read_ops_per_s": 20}
    return policy


def _network(dice: random.Random) -> NetworkRates:
    return NetworkRates(
        loses=dice.choice([0.0, 0.03, 0.1]),
        repeats=dice.choice([0.0, 0.05, 0.2]),
        delays=dice.choice([0.0, 0.1, 0.5]),
        delay_ms=dice.choice([20, 200, 1_000]),
    )


def _disk(dice: random.Random, *, fails: bool) -> DiskRates:
    return DiskRates(
        slow=dice.choice([0.0, 0.1, 0.5]),
        slow_ms=dice.choice([5, 50, 300]),
        fails=dice.choice([0.01, 0.03]) if fails else 0.0,
        is_full=dice.choice([0.0, 0.1]) if fails else 0.0,
    )


def _blow(dice: random.Random) -> Blow:
    kind = dice.choice(["crash", "crash", "power cut", "power cut", "power cut", "close", "pause"])
    if kind == "pause":
        return Blow(at_ms=int(dice.random() * _SPAN_MS), kind=kind, ms=dice.choice([50, 400, 4_000]))
    ms = dice.choice(_STEPS_MS) if dice.random() < 0.5 else 0
    if dice.random() < 0.6:
        # What was just claimed is what a power cut undoes.
        return Blow(at_event=dice.randrange(1, 80), kind=kind, ms=ms)
    return Blow(at_ms=int(dice.random() * _SPAN_MS), kind=kind, ms=ms)
