"""What goes wrong on a connection of the fault proxy, and on which."""

import random
from collections.abc import Callable, Mapping, Sequence
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
    # By RST, once the reply is through: the connection dies while idle, or as the next request is on its way.
    RESET = "reset"
    # Half open: nothing passes any more, in either direction, and nobody is told.
    SILENCE = "silence"
    # Half open: requests arrive, replies do not; nor is the server told when the client leaves.
    NO_REPLY = "no reply"


HALF_OPEN = frozenset({Kind.SILENCE, Kind.NO_REPLY})


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    ms: int = 20
    bytes_per_s: int = 20_000


# The fault of an exchange, by the number of its connection and its own number there, both from 0.
Plan = Callable[[int, int], Fault | None]


def without_faults(connection: int, exchange: int) -> Fault | None:
    return None


def scripted(faults: Mapping[tuple[int, int], Fault]) -> Plan:
    """By (connection, exchange)."""
    return lambda connection, exchange: faults.get((connection, exchange))


def seeded(seed: int, *, rate: float = 0.3, kinds: Sequence[Kind] = tuple(Kind)) -> Plan:
    """On this share of the exchanges, each by the seed and its numbers alone."""

    def plan(connection: int, exchange: int) -> Fault | None:
        dice = random.Random(f"{seed} {connection} {exchange}")
        return Fault(dice.choice(kinds), ms=dice.randrange(1, 20)) if dice.random() < rate else None

    return plan
