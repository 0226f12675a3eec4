"""`make bench`: every figure as one row of a table, or those of the parts that are named."""

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterable

from bench import capnp, fairness, fastpath, handover, objects, pipeline, postgres, processes, start
from bench.embedded import engine, sampling
from bench.embedded import store as embedded
from bench.http import client
from bench.http import door as http
from bench.peers import comparison
from bench.report import HEAD, Figure, Table

# What each part measures, given whether it is to be quick.
PARTS: dict[str, Callable[[bool], Iterable[Figure | Table]]] = {
    "start": lambda quick: start.measure(),
    "handover": lambda quick: [handover.measure()],
    "http": lambda quick: http.measure(),
    "processes": lambda quick: processes.measure(),
    "capnp": lambda quick: capnp.measure(),
    "fairness": lambda quick: fairness.measure(),
    "embedded": lambda quick: embedded.measure(100_000 if quick else 1_000_000),
    "sampling": lambda quick: sampling.measure(20 if quick else 100),
    "engine": lambda quick: engine.measure(100_000 if quick else 1_000_000),
    "client": lambda quick: client.measure(),
    "postgres": lambda quick: postgres.measure(messages=50_000 if quick else 300_000),
    "objects": lambda quick: objects.measure(10_000 if quick else 100_000),
    "fastpath": lambda quick: fastpath.measure(1_000 if quick else 4_000),
    "pipeline": lambda quick: pipeline.measure(400_000 if quick else 4_000_000),
    "peers": comparison.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="a tenth of the backlog, and short rounds")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    print(f"Python {platform.python_version()}, {platform.machine()}, {platform.system()} {platform.release()}\n")
    print(HEAD, flush=True)
    tables: list[Table] = []
    for part in given.parts or PARTS:
        started_s = time.monotonic()
        for measured in PARTS[part](given.quick):
            if isinstance(measured, Table):
                tables.append(measured)
            else:
                print(measured.row(), flush=True)
        # Beside the table, so that whoever waits sees what is done and the table stays whole.
        print(f"{part}: {time.monotonic() - started_s:.0f} s", file=sys.stderr, flush=True)
    for table in tables:
        print(f"\n{table.markdown()}")


if __name__ == "__main__":
    main()
