"""`python -m bench.peers`: the comparison alone, with some of its scenarios and systems."""

import argparse
import dataclasses

from bench.peers.comparison import compare
from bench.peers.scenarios import FULL, QUICK, SCENARIOS
from bench.peers.systems import SYSTEMS
from bench.report import HEAD, Table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"some of {', '.join(SCENARIOS)}; default: all"
    )
    names = ", ".join(system.name for system in SYSTEMS)
    parser.add_argument("--system", action="append", metavar="NAME", help=f"one of {names}; default: all")
    parser.add_argument("--quick", action="store_true", help="one short round and a fifth of the backlog")
    parser.add_argument("--rounds", type=int, help="rounds of each scenario")
    given = parser.parse_args()
    if unknown := [each for each in given.scenarios if each not in SCENARIOS]:
        parser.error(f"no scenario is called {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    systems = [system for system in SYSTEMS if not given.system or system.name in given.system]
    scale = QUICK if given.quick else FULL
    if given.rounds:
        scale = dataclasses.replace(scale, rounds=given.rounds)
    print(HEAD, flush=True)
    for measured in compare(scale, given.scenarios or SCENARIOS, systems):
        print(f"\n{measured.markdown()}" if isinstance(measured, Table) else measured.row(), flush=True)


if __name__ == "__main__":
    main()
