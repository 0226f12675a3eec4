"""Seeds that failed once, and why.

A seed stands for what the plan makes of it: when the plan changes, these become seeds like any other. What they found
is proved by a test of its own.
"""

PINNED: dict[int, str] = {}
