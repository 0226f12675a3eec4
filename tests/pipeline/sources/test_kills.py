"""Nothing is lost, and nothing comes twice unless its lease was lost, whichever process is killed."""

from pathlib import Path

import pytest

from tests.pipeline.sources.draining import drain_under_kills
from tests.seeds import run_seed


@pytest.mark.spec("9.3")
@pytest.mark.slow
def test_a_killed_query_loses_nothing_and_repeats_only_what_lost_its_lease(tmp_path: Path) -> None:
    tally = drain_under_kills(tmp_path, kills=5, seed=run_seed())

    assert tally.is_good, tally
    assert tally.handed_over
    assert tally.to_rival
