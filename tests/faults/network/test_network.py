"""A call that got no answer happened once or not at all, whatever the network did to it (T13)."""

import sys

import pytest

from holdfast.client.http.calls import HttpCalls, HttpRequest
from holdfast.client.http.response import HttpReply
from holdfast.testing.proxy import NetworkFaultKind
from tests.faults.network.network import ROUND, run_network_faults, run_round
from tests.machinery.outcomes import PartOutcome
from tests.seeds import run_seed

FAULTS = 200


@pytest.mark.slow
def test_network_faults_lose_nothing_bring_nothing_back_and_lease_nothing_twice() -> None:
    _check(run_network_faults(FAULTS, seed=run_seed()), FAULTS)


@pytest.mark.slow
def test_a_client_that_repeats_what_it_must_not_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    try_once = HttpCalls.try_once

    async def repeat_anything(calls: HttpCalls, request: HttpRequest) -> HttpReply:
        request.is_repeatable = True
        return await try_once(calls, request)

    monkeypatch.setattr(HttpCalls, "try_once", repeat_anything)
    broken = {violation.rule for violation in run_round((7, 2 * ROUND)).findings.violations}
    assert "duplicated" in broken


def _check(outcome: PartOutcome, faults: int) -> None:
    sys.stdout.write(f"{outcome}\n")
    assert not outcome.violations, "\n".join(outcome.violations)
    assert outcome.done >= faults
    assert all(outcome.counts.get(name) for name in ("sent", "acked", "unknown", *NetworkFaultKind))
