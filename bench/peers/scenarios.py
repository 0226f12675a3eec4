"""The scenarios that every system goes through, and how long a run of them takes."""

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """The work of a client between its start and its stop."""

    PRODUCE = "produce"
    CONSUME = "consume"
    # One message after the other to each of many queues, then the same with claims.
    ROTATE = "rotate"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Producers and consumers of one queue, or one client that goes around many queues."""

    # May name the backlog of the scale.
    title: str
    batch: int = 1
    producers: int = 0
    consumers: int = 0
    # Producers pause while so many messages are not yet acked; 0: they never do.
    most_outstanding: int = 0
    # Messages a second of each producer; 0: as many as it can.
    rate_per_s: int = 0
    # Consumers begin with a backlog of messages.
    drains: bool = False
    queues: int = 1
    # The measured time, as a multiple of the scale's.
    stretch: float = 1

    @property
    def measures_delay(self) -> bool:
        return self.rate_per_s > 0


SCENARIOS = {
    "enqueue-1": Scenario(title="enqueue, single", producers=1),
    "enqueue-100": Scenario(title="enqueue, batches of 100", producers=1, batch=100),
    "lifecycle-1": Scenario(title="lifecycle, single", producers=1, consumers=1, most_outstanding=1_000),
    "lifecycle-10": Scenario(
        title="lifecycle, batches of 10", producers=1, consumers=1, batch=10, most_outstanding=1_000
    ),
    "lifecycle-100": Scenario(
        title="lifecycle, batches of 100", producers=1, consumers=1, batch=100, most_outstanding=1_000
    ),
    "crowd": Scenario(
        title="lifecycle, single, 8 producers and 8 consumers", producers=8, consumers=8, most_outstanding=1_000
    ),
    # Stretched, so that a hundredth of its messages is more than two or three.
    "delay": Scenario(title="from enqueue to a waiting consumer", producers=1, consumers=1, rate_per_s=200, stretch=3),
    "queues": Scenario(title="lifecycle, single, in turn to 1,000 queues", queues=1_000),
    "drain": Scenario(
        title="claim and ack in batches of 100 of {backlog:,} queued", consumers=1, batch=100, drains=True
    ),
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured. Every round measures all systems of a scenario, one after the other."""

    rounds: int
    warm_s: float
    window_s: float
    backlog: int
    # Messages to each of the many queues.
    passes: int


FULL = Scale(rounds=3, warm_s=0.5, window_s=1.5, backlog=1_000_000, passes=5)
QUICK = Scale(rounds=1, warm_s=0.3, window_s=0.7, backlog=200_000, passes=2)


def title_of(scenario: str, scale: Scale) -> str:
    return SCENARIOS[scenario].title.format(backlog=scale.backlog)
