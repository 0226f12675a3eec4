"""`python -m tests.server.failing_disk CONTROL DIRECTORY [stuck] serve …`: the command line on a disk that fails.

The process runs with the shim. While the file CONTROL exists, it names the fault below DIRECTORY: `fail_sync`,
`fill_disk`, or `kill_before N`, which kills the process before its N-th change of a file from then on. With `stuck`,
RocksDB never closes.
"""

import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.cli.main import main
from holdfast.stores.rocks.engine import database, reopening
from tests.machinery.disk import shim
from tests.machinery.disk.shim import Fault

_EVERYTHING = 1 << 40
_LOOK_S = 0.01


def obey(control: Path, directory: Path) -> None:
    armed = ""
    while True:
        told = control.read_text() if control.exists() else ""
        if told != armed:
            name, _, number = told.partition(" ")
            shim.watch(directory)  # heals the disk, and counts from 1 again
            if number:
                shim.arm(Fault[name.upper()], int(number))
            elif told:
                shim.arm(Fault[name.upper()], 1, _EVERYTHING)
            armed = told
        time.sleep(_LOOK_S)


def never_close(parts: list[Any], failures: list[Exception]) -> None:
    threading.Event().wait()


if __name__ == "__main__":
    control, directory = Path(sys.argv[1]), Path(sys.argv[2])
    if sys.argv[3] == "stuck":
        del sys.argv[3]
        database._try_to_close = never_close
        reopening.CLOSING_S = 0.1
    shim.watch(directory)
    threading.Thread(target=obey, args=(control, directory), daemon=True).start()
    sys.argv[1:] = sys.argv[3:]
    main()
