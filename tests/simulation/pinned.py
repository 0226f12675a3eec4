"""Seeds that failed once, and why.

A seed stands for what the plan and every step of the core make of it: when those change, it becomes a seed like any
other. What it found is proved by a test of its own.
"""

PINNED: dict[int, str] = {
    103: "a ledger's claim whose caller had left was given back under the hands of the one who read it again",
}
