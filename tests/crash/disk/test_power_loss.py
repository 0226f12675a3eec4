"""A power cut loses nothing that was answered with durability `fsync`, and leaves no store inconsistent."""

import pytest

from tests.crash.proofs import check_outcome
from tests.machinery.disk import run_power_loss
from tests.machinery.disk.power import durability_of
from tests.machinery.disk.store import SHARDS
from tests.machinery.disk.workers import Workers, make_place
from tests.seeds import run_seed


@pytest.mark.spec("4.3")
@pytest.mark.slow
def test_every_disk_that_a_power_cut_left_keeps_what_was_answered() -> None:
    """Every second one is of a store with four shards."""
    outcome = run_power_loss(100, seed=run_seed())
    check_outcome(outcome, at_least=100)
    assert outcome.counts["moves, shards 4"] > 20


@pytest.mark.slow
def test_a_store_that_answers_before_it_syncs_is_found_out() -> None:
    with make_place() as place, Workers() as workers:
        kinds = {"lost: ", "resurrected: "}
        for image in (image for image in range(60) if durability_of(image) == "os"):
            shards = SHARDS[image % len(SHARDS)]
            done = workers.call("power:cut_power", place=place, seed=1, image=image, shards=shards, binds=True)
            assert done.error is None
            kinds -= {kind for kind in kinds for violation in done.result["violations"] if kind in violation}
            if not kinds:
                return
    pytest.fail(f"no image showed what was {' or '.join(kinds)}")
