"""What goes wrong on a connection of the fault proxy, and on which."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    # Every piece, either way, comes `ms` later.
    LATENCY = "latency"
    # No more than `bytes_per_s` either way.
    BANDWIDTH = "bandwidth"
    # The request arrives a few bytes at a time, `ms` apart, and may never be whole.
    SLOW_LORIS = "slow loris"
    CUT_BEFORE_REQUEST = "cut before the request"
    CUT_IN_REQUEST = "cut in the request"
    # The server has answered, so whatever was asked is done; nothing of the answer arrives.
    CUT_BEFORE_REPLY = "cut before the reply"
    CUT_IN_REPLY = "cut in the reply"
    # By RST, once the reply is through and the connection lies idle: it dies between two calls.
    RESET = "reset"
    # Half open: nothing passes any more, in either direction, and nobody is told.
    SILENCE = "silence"
    # Half open: requests arrive, replies do not; nor is the server told when the client leaves.
    NO_REPLY = "no reply"


HALF_OPEN = frozenset({Kind.SILENCE, Kind.NO_REPLY})


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    # Exchanges of the connection that go well before it.
    after: int = 0
    ms: int = 20
    bytes_per_s: int = 20_000


# The fault of the connection of this number, the first being 0.
Plan = Callable[[int], Fault | None]


def without_faults(number: int) -> Fault | None:
    return None


def scripted(faults: Sequence[Fault | None]) -> Plan:
    """These for the first connections, in order, and none for the others."""
    return lambda number: faults[number] if number < len(faults) else None


def seeded(seed: int, *, rate: float = 0.5, kinds: Sequence[Kind] = tuple(Kind), most_after: int = 3) -> Plan:
    """A fault on this share of the connections, each by the seed and its number alone."""

    def plan(number: int) -> Fault | None:
        dice = random.Random(f"{seed} connection {number}")
        if dice.random() >= rate:
            return None
        return Fault(dice.choice(kinds), after=dice.randrange(most_after + 1), ms=dice.randrange(1, 20))

    return plan
