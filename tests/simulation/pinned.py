"""Seeds that failed once, and why.

A seed stands for what the plan makes of it: when the plan changes, these become seeds like any other. What they found
is proved by a test of its own.
"""

PINNED: dict[int, str] = {
    13: "a ledger's claim whose caller had left was given back under the hands of the one who read it again",
    48: "the same",
}
