"""A damaged file is refused by name, or does not matter; no payload is ever wrong, and none is missing in silence."""

import pytest

from tests.crash.proofs import check_outcome
from tests.machinery.disk import run_rot
from tests.seeds import run_seed


@pytest.mark.slow
def test_a_store_with_any_damaged_file_is_refused_or_whole() -> None:
    check_outcome(run_rot(200, seed=run_seed()), at_least=200)
