"""python -m tests.proof [PART…] [--scale 1.0] [--seed N] [--add] [--page]: run the parts, and write the report."""

import argparse
import os
import sys
import time

from tests.proof.parts import PARTS
from tests.proof.report import PAGE, keep, write_page

# Where nobody watches, how far it is is said this often.
_TOLD_EVERY_S = 30.0


class Display:
    """One line that changes in a terminal, a line now and then elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started_s = time.monotonic()
        self._told_s = 0.0
        self._is_live = sys.stderr.isatty()

    def __call__(self, done: int, total: int, said: str = "") -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < (0.2 if self._is_live else _TOLD_EVERY_S) and done < total:
            return
        self._told_s = now_s
        passed_s = now_s - self._started_s
        left = f", {passed_s * (total - done) / done / 60:.0f} min left" if done and done < total else ""
        line = f"{self._name}: {done:,} of {total:,} in {passed_s / 60:.1f} min{left} {said}"[:160]
        sys.stderr.write(f"\r\x1b[2K{line}" if self._is_live else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._is_live:
            sys.stderr.write("\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them if none is given")
    parser.add_argument("--scale", type=float, default=float(os.environ.get("HOLDFAST_PROOF_SCALE", "1")))
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--add", action="store_true", help="add to what is kept of the parts, instead of replacing it")
    parser.add_argument("--page", action="store_true", help="run nothing; write the page from the kept results")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if arguments.page:
        write_page(PARTS)
        return 0
    violated = 0
    for name in arguments.parts or PARTS:
        part = PARTS[name]
        display = Display(name)
        outcome = part.run(max(1, round(part.full * arguments.scale)), seed=arguments.seed, progress=display)
        display.end()
        outcome.name = name
        keep(outcome, arguments.seed, adds=arguments.add)
        write_page(PARTS)
        violated += outcome.violated
        sys.stdout.write(
            f"{name}: {outcome.done:,} {outcome.unit}, {outcome.violated} violations, {outcome.seconds / 60:.1f} min,"
            f" seed {arguments.seed}\n"
        )
        for what in outcome.violations:
            sys.stdout.write(f"  {what}\n")
        sys.stdout.flush()
    sys.stdout.write(f"report: {PAGE}\n")
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
