"""A store is opened once at a time, by any process and under any spelling of its path (SPEC 4.6, 4.9)."""

import pytest

from tests.crash.openings import run_openings
from tests.crash.proofs import check_outcome
from tests.seeds import run_seed

# With eight processes of eight threads each: `make proof`.
ROUNDS = 5


@pytest.mark.spec("4.9")
@pytest.mark.slow
def test_of_many_openings_of_one_directory_under_many_spellings_exactly_one_wins() -> None:
    check_outcome(run_openings(ROUNDS, seed=run_seed(), processes=4), ROUNDS)
