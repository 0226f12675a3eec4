"""The seed of a run in `make test`: always the same one, so that a change is judged by what it changed.

`make proof` draws its seeds at random.
"""

import os


def run_seed() -> int:
    """HOLDFAST_SEED tries another one, or one that was printed; timing stays the machine's own."""
    return int(os.environ.get("HOLDFAST_SEED", "4711"))
