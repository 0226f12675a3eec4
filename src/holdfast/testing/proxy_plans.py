"""The faults of the fault proxy, and plans that choose the fault of each exchange."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class NetworkFaultKind(StrEnum):
    """A way in which the exchange of a request and its reply fails or is slow."""

    # Each chunk of bytes, in both directions, is delayed by `ms`.
    LATENCY = "latency"
    # At most `bytes_per_s` pass in each direction.
    BANDWIDTH = "bandwidth"
    # The request arrives a few bytes at a time, `ms` apart, and may not complete before a timeout.
    SLOW_LORIS = "slow loris"
    CUT_BEFORE_REQUEST = "cut before the request"
    CUT_IN_REQUEST = "cut in the request"
    # The server has carried out the request and replied, but the client receives no part of the reply.
    CUT_BEFORE_REPLY = "cut before the reply"
    CUT_IN_REPLY = "cut in the reply"
    # RST after the whole reply: the connection is reset while it is idle or while the next request is on its way.
    RESET = "reset"
    # Half open: nothing passes in either direction, and neither end learns that the other has closed.
    SILENCE = "silence"
    # Half open: requests arrive but replies do not, and the server does not learn that the client has closed.
    NO_REPLY = "no reply"


HALF_OPEN = frozenset({NetworkFaultKind.SILENCE, NetworkFaultKind.NO_REPLY})


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one exchange. `ms` applies to latency and slow requests, `bytes_per_s` to a limited bandwidth."""

    kind: NetworkFaultKind
    ms: int = 20
    bytes_per_s: int = 20_000


# Returns the fault of an exchange, given the number of its connection and its own number there. Both start at 0.
Plan = Callable[[int, int], Fault | None]


def without_faults(connection: int, exchange: int) -> Fault | None:
    """A plan without faults."""
    return None


def scripted(faults: Mapping[tuple[int, int], Fault]) -> Plan:
    """Return a plan that has the given faults, by (connection, exchange)."""
    return lambda connection, exchange: faults.get((connection, exchange))


def seeded(seed: int, *, rate: float = 0.3, kinds: Sequence[NetworkFaultKind] = tuple(NetworkFaultKind)) -> Plan:
    """Return a plan that gives each exchange a random fault of `kinds` with the probability `rate`.

    The choice depends only on the seed and on the numbers of the connection and the exchange, so it is repeatable.
    """

    def plan(connection: int, exchange: int) -> Fault | None:
        dice = random.Random(f"{seed} {connection} {exchange}")
        return Fault(dice.choice(kinds), ms=dice.randrange(1, 20)) if dice.random() < rate else None

    return plan
