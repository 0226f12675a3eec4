"""Open a killed store of format 1 once for each given bit of RocksDB's own log, with that bit flipped, and print the
result.

It runs in a separate process: some of these openings never returned from RocksDB, and only a kill ended them. The
arguments are the store and a directory to work in. Each line of input is `at bit`. Each line of output is the number of
messages found, whose payloads repeat their numbers, or "refused".
"""

import shutil
import sys
from pathlib import Path

from holdfast.model.errors import StoreUnavailable
from tests.crash.rocks import contents, copy_store
from tests.stores.rocks.damage import flip, log_of, read_all


def main() -> None:
    store, place = Path(sys.argv[1]), Path(sys.argv[2]) / "store"
    copy_store(store, place)
    for line in sys.stdin:
        at, bit = map(int, line.split())
        flip(log_of(place), at, 1 << bit)
        before = contents(place)
        try:
            found = len(read_all_in_order(place))
        except StoreUnavailable as error:
            is_named = "restore" in error.message and contents(place) == before
            say("refused" if is_named else f"changed: {error.message}")
            flip(log_of(place), at, 1 << bit)
        else:
            say(str(found))
            shutil.rmtree(place)
            copy_store(store, place)


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def read_all_in_order(store: Path) -> list[bytes]:
    found = read_all(store)
    assert found == [b"%04d" % number * (len(payload) // 4) for number, payload in enumerate(found)]
    return found


if __name__ == "__main__":
    main()
