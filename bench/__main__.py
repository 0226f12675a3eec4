"""`make bench`: every figure as one row of a table. `--quick` uses a tenth of the backlog."""

import platform
import sys

from bench import capnp, client, embedded, fairness, fastpath, handover, http, objects, postgres
from bench.report import HEAD, Figure


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.machine()}, {platform.system()} {platform.release()}\n")
    print(HEAD, flush=True)
    pair = handover.measure()
    print(
        Figure(
            "blocking call that need not wait, in the calling thread",
            f"{pair.subject_us:.1f} us",
            "handed to a loop's thread",
            f"{pair.baseline_us:.1f} us",
            pair.speed_ratio,
            goal=2,
        ).row(),
        flush=True,
    )
    for figure in http.measure():
        print(figure.row(), flush=True)
    for figure in capnp.measure():
        print(figure.row(), flush=True)
    print(fairness.measure().row(), flush=True)
    for figure in embedded.measure(100_000 if "--quick" in sys.argv else 1_000_000):
        print(figure.row(), flush=True)
    for figure in client.measure():
        print(figure.row(), flush=True)
    for figure in postgres.measure(messages=50_000 if "--quick" in sys.argv else 300_000):
        print(figure.row(), flush=True)
    for figure in objects.measure(10_000 if "--quick" in sys.argv else 100_000):
        print(figure.row(), flush=True)
    for figure in fastpath.measure(1_000 if "--quick" in sys.argv else 4_000):
        print(figure.row(), flush=True)


if __name__ == "__main__":
    main()
