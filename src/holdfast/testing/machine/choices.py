"""Hypothesis strategies from which the rules of the queue machine choose."""

from typing import Any

from hypothesis import strategies as st

from holdfast.testing.machine.queue_model import Ref

REFS: list[Ref] = [("acme", "mail"), ("acme", "pay"), ("zeta", "mail"), ("zeta", "pay")]

# Few values, which are multiples of each other, so that different time limits end at the same instant. The first queue
# is chosen most often, so that such coincidences happen there.
refs = st.sampled_from([REFS[0]] * 5 + [REFS[1]] * 2 + REFS[2:])
priorities = st.sampled_from([100, 100, 100, 1, 200])
colours = st.sampled_from(["red", "blue"])
errors = st.sampled_from([None, "boom", "bang"])
delays = st.sampled_from([0, 1, 1_000, 2_000])
leases = st.sampled_from([None, 1, 1_000, 2_000, 4_000])
limits = st.sampled_from([1, 1, 2, 3, 10])
verdicts = st.sampled_from(["ack", "ack", "nack", "nack", "final", "defer", "release"])
mostly_current = st.sampled_from([False, False, True])
picks = st.integers(0, 1 << 16)


def seldom(*values: Any) -> st.SearchStrategy[Any]:
    """Return a strategy that gives None five times as often as one of the values."""
    return st.sampled_from([*values, *[None] * 5 * len(values)])


drafts = st.fixed_dictionaries(
    {
        "payload": st.binary(max_size=4),
        "priority": priorities,
        "delay_ms": seldom(1, 1_000, 2_000),
        "ttl_ms": seldom(1, 1_000, 2_000, 3_000),
        "key": st.sampled_from([None] * 5 + ["k1", "k2", "k3", "k4"]),
        "group": st.sampled_from([None, None, "g", "g", "h"]),
        "max_retries": st.sampled_from([None, None, 0, 1, 2]),
        "headers": st.sampled_from([None, {"colour": "red"}, {"colour": "blue"}]),
        "correlation_id": seldom("ours"),
    },
).map(lambda draft: {name: value for name, value in draft.items() if value is not None})

policies = st.fixed_dictionaries(
    {},
    optional={
        "lease_ms": st.sampled_from([1_000, 2_000, 5_000]),
        "max_lease_ms": st.sampled_from([1_500, 3_000, 60_000]),
        "max_retries": st.integers(0, 3),
        "backoff_base_ms": st.sampled_from([0, 500, 2_000]),
        "backoff_cap_ms": st.sampled_from([0, 1_000, 30_000]),
        "ttl_ms": seldom(1_000, 3_000),
        "on_ttl": st.sampled_from(["dead_letter", "drop"]),
        "dedup_window_ms": st.sampled_from([0, 1_000, 3_000, 86_400_000]),
        "keep_succeeded_ms": st.sampled_from([0, 1_000, 3_000]),
    },
)
