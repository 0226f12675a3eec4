"""The comparison with other queues: its arithmetic, and one short run, so that it cannot rot unnoticed."""

import dataclasses
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bench.peers import goals
from bench.peers.comparison import compare
from bench.peers.contract import Client, Server
from bench.peers.processes import ServerProcess, cpu_seconds, is_in_memory
from bench.peers.run import Outcome, Runner, Sample, outcome_of, quantile
from bench.peers.scenarios import QUICK, SCENARIOS, Scale
from bench.peers.systems import SYSTEMS, Side, System
from bench.report import Figure, Table

TINY = Scale(rounds=1, warm_s=0.0, window_s=0.02, backlog=2_000, passes=1)
NAMED = {system.name: system for system in SYSTEMS}
ROOT = Path(__file__).parents[2]
OURS, PEER, OTHER_PEER = "Holdfast embedded", "beanstalkd", "Redis streams"


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux alone has")


def outcome(rate_per_s: float = 0, *, p50_ms: float | None = None, p99_ms: float | None = None) -> Outcome:
    return Outcome(rate_per_s=rate_per_s, server_us=20, client_us=30, p50_ms=p50_ms, p99_ms=p99_ms)


def one_figure(scenario: str, rounds: list[goals.Round]) -> Figure:
    [figure] = goals.figures(scenario, rounds, QUICK)
    return figure


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    rounds = [
        {OURS: outcome(100), PEER: outcome(200)},
        {OURS: outcome(900), PEER: outcome(300)},
        {OURS: outcome(150), PEER: outcome(100)},
    ]
    # 0.5, 3 and 1.5, where the ratio of the medians, 150 and 200, would be 0.75.
    assert goals.ratio(OURS, PEER, rounds, "rate") == 1.5


def test_a_round_in_which_one_side_failed_counts_for_neither() -> None:
    rounds: list[goals.Round] = [
        {OURS: outcome(100), PEER: outcome(100)},
        {OURS: outcome(900)},
        {PEER: outcome(900)},
    ]
    assert goals.ratio(OURS, PEER, rounds, "rate") == 1
    assert goals.ratio(OURS, OTHER_PEER, rounds, "rate") is None


def test_the_best_peer_has_the_highest_median() -> None:
    rounds = [
        {PEER: outcome(100), OTHER_PEER: outcome(90)},
        {PEER: outcome(10), OTHER_PEER: outcome(90)},
        {PEER: outcome(20), OTHER_PEER: outcome(90)},
    ]
    assert goals.best([PEER, OTHER_PEER, "never measured"], rounds, "rate") == OTHER_PEER
    assert goals.best(["never measured"], rounds, "rate") is None


def test_of_two_delays_the_shorter_is_the_faster() -> None:
    rounds = [{OURS: outcome(p50_ms=0.5, p99_ms=8), PEER: outcome(p50_ms=1, p99_ms=4)}]
    assert goals.ratio(OURS, PEER, rounds, "p50") == 2
    assert goals.ratio(OURS, PEER, rounds, "p99") == 0.5
    assert [(each.ratio, each.is_met) for each in goals.figures("delay", rounds, QUICK)] == [(2, True), (0.5, False)]


def test_a_goal_is_met_from_its_ratio_on() -> None:
    assert one_figure("lifecycle-1", [{OURS: outcome(130), PEER: outcome(100)}]).is_met
    assert not one_figure("lifecycle-1", [{OURS: outcome(129), PEER: outcome(100)}]).is_met


def test_the_best_served_client_is_measured_beside_the_best_peer_and_both_are_named() -> None:
    rounds: list[goals.Round] = [
        {
            "Holdfast HTTP": outcome(50),
            "Holdfast HTTP exchange": outcome(80),
            PEER: outcome(100),
            OTHER_PEER: outcome(60),
        }
    ]
    figure = one_figure("crowd", rounds)
    assert (figure.value, figure.baseline) == ("Holdfast HTTP exchange: 80 msg/s, 20 + 30 us", PEER)
    assert (figure.ratio, figure.goal) == (0.8, 2)


def test_a_library_is_beside_its_own_goal_and_is_no_peer_of_the_others() -> None:
    rounds = [{OURS: outcome(260), PEER: outcome(100), "persist-queue": outcome(200)}]
    figures = goals.figures("enqueue-1", rounds, QUICK)
    assert [(each.baseline, each.ratio) for each in figures] == [(PEER, 2.6), ("persist-queue", 1.3)]


def test_without_a_peer_there_is_no_figure() -> None:
    assert goals.figures("enqueue-100", [{OURS: outcome(100)}], QUICK) == []


def test_every_goal_names_a_scenario_in_which_both_of_its_sides_take_part() -> None:
    for goal in goals.GOALS:
        assert goal.scenario in SCENARIOS
        sides = {system.side for system in SYSTEMS if goal.scenario in system.scenarios}
        assert {goal.side, goal.beside} <= sides, goal


def test_each_scenario_has_one_goal_of_either_side_beside_the_peers_and_a_delay_has_two() -> None:
    for side in (Side.EMBEDDED, Side.SERVED):
        named = [goal.scenario for goal in goals.GOALS if goal.side is side and goal.beside is Side.PEER]
        assert sorted(named) == sorted([*SCENARIOS, "delay"])


def test_the_table_has_a_column_for_each_measured_system_and_a_dash_where_it_did_not_take_part() -> None:
    measured: dict[str, list[goals.Round]] = {
        "enqueue-1": [{OURS: outcome(1_500)}, {OURS: outcome(2_500)}, {OURS: outcome(2_000)}],
        "delay": [{PEER: outcome(200, p50_ms=0.25, p99_ms=2)}],
    }
    assert goals.table(measured, QUICK).markdown().splitlines()[2:] == [
        "| enqueue, single | – | 2,000 msg/s, 20 + 30 us |",
        "| from enqueue to a waiting consumer | p50 0.25 ms, 20 + 30 us; p99 2.00 ms | – |",
    ]


def test_rates_and_processor_time_are_those_between_two_samples() -> None:
    measured = outcome_of(Sample(10.0, 500, 1.0, 2.0), Sample(12.0, 1_500, 1.5, 2.25), [])
    assert measured == Outcome(rate_per_s=500, server_us=500, client_us=250)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1, 100), (0, 1)])
def test_a_quantile_is_a_value_that_this_share_does_not_exceed(share: float, expected: float) -> None:
    assert quantile([float(each) for each in range(100, 0, -1)], share) == expected


@on_linux
def test_a_child_counts_to_the_processor_time_of_its_parent() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        own = cpu_seconds([child.pid])
        assert own >= 0.15
        assert cpu_seconds([os.getpid()]) >= own
        child.communicate(b"\n")


@on_linux
def test_a_directory_in_memory_is_known_as_such() -> None:
    assert not is_in_memory(Path("/proc"))
    for point, kind in (line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()):
        if point == "/dev/shm":
            assert is_in_memory(Path(point)) == (kind == "tmpfs")


def test_a_missing_peer_is_named_with_its_package_and_the_others_are_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    absent = dataclasses.replace(NAMED[PEER], programs=("no-such-program",))
    ungiven = dataclasses.replace(NAMED["persist-queue"], module="no_such_module")
    [table] = compare(TINY, [], [absent, ungiven])
    assert isinstance(table, Table)
    assert capsys.readouterr().err == (
        "peers: not installed and not measured: "
        "beanstalkd (Debian package beanstalkd), persist-queue (pip install persist-queue)\n"
    )


def test_a_client_that_fails_is_reported_and_the_others_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    class NoServer(Server):
        address = "0"

    broken = System("broken", Side.PEER, lambda _: NoServer(), NAMED[PEER].client, frozenset({"enqueue-1"}))
    [table] = compare(TINY, ["enqueue-1"], [broken, NAMED[OURS]])
    assert isinstance(table, Table)
    assert table.columns[1:] == (OURS,)
    assert "enqueue-1, broken: a client failed" in capsys.readouterr().err


def test_a_server_that_does_not_start_is_reported_with_its_last_words(capsys: pytest.CaptureFixture[str]) -> None:
    def start(directory: Path) -> Server:
        ServerProcess([sys.executable, "-c", "raise SystemExit('no licence')"], directory, port=1)
        return Server()

    [table] = compare(TINY, [], [System("broken", Side.PEER, start, "", frozenset())])
    assert isinstance(table, Table)
    said = capsys.readouterr().err
    assert said.startswith("peers: broken did not start and is not measured")
    assert "no licence" in said


@pytest.mark.services
def test_embedded_enqueues_are_measured_beside_redis() -> None:
    measured = list(compare(TINY, ["enqueue-1"], [NAMED[OURS], NAMED[OTHER_PEER]]))
    figure, table = measured
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    assert (figure.what, figure.baseline) == ("embedded: enqueue, single, fsync", OTHER_PEER)
    assert figure.ratio > 0
    assert len(table.rows) == 1


@pytest.mark.slow
# A machine that stands still for a moment may drain any backlog: see the next test.
@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each != "drain"])
def test_every_scenario_runs_embedded(scenario: str, tmp_path: Path) -> None:
    system = NAMED[OURS]
    place = tmp_path / "store"
    place.mkdir()
    measured = Runner(tmp_path, TINY).run(system.start(place), system.client, SCENARIOS[scenario], shares_process=True)
    assert measured.rate_per_s > 0
    assert (measured.p50_ms is not None) == SCENARIOS[scenario].measures_delay


def test_a_backlog_that_is_drained_before_the_end_gives_no_rate(tmp_path: Path) -> None:
    system = NAMED[OURS]
    scale = dataclasses.replace(TINY, backlog=1_000)
    with pytest.raises(RuntimeError, match="the backlog of 1,000 messages did not last"):
        Runner(tmp_path, scale).run(system.start(tmp_path), system.client, SCENARIOS["drain"], shares_process=True)


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_servers_and_clients_are_stopped_when_the_comparison_is(how: signal.Signals) -> None:
    options = ["enqueue-1", "--rounds", "1000", "--system", OTHER_PEER, "--system", OURS]
    command = [sys.executable, "-m", "bench.peers", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as comparison:
        assert comparison.stderr is not None
        comparison.stderr.readline()  # one system was measured
        started: set[int] = set()
        while len(started) < 2:  # the server of one, and a client
            started |= set(children(comparison.pid))
        comparison.send_signal(how)
        said = comparison.stderr.read()
    assert b"KeyboardInterrupt" in said
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def test_an_exchange_is_an_ack_and_a_claim_where_a_system_has_no_call_for_both() -> None:
    class Recorded(Client):
        def __init__(self) -> None:
            self.calls: list[object] = []

        def claim(self, queue: str, limit: int, wait_s: float) -> list[tuple[object, bytes]]:
            self.calls.append(("claim", queue, limit, wait_s))
            return []

        def ack(self, queue: str, handles: list[object]) -> None:
            self.calls.append(("ack", queue, handles))

    client = Recorded()
    client.exchange("q", [], 5, 0.5)
    client.exchange("q", [7], 5, 0.5)
    assert client.calls == [("claim", "q", 5, 0.5), ("ack", "q", [7]), ("claim", "q", 5, 0.5)]
