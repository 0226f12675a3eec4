"""The process that others are forked from.

    python -m tests.machinery.kills.mother MODULE

reads argument lists from its input, a JSON array a line, and calls `main` of the module with each in a process of its
own, one after the other. Each says `pid N` first; when it has ended, `ended STATUS` is said for it.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(module: str) -> None:
    begin: Callable[..., Any] = importlib.import_module(module).main
    _die_with_parent()
    for line in sys.stdin.buffer:
        arguments = json.loads(line)
        pid = os.fork()
        if not pid:
            _die_with_parent()
            os.write(1, f"pid {os.getpid()}\n".encode())
            _be_child(begin, arguments)
        _, status = os.waitpid(pid, 0)
        os.write(1, f"ended {os.waitstatus_to_exitcode(status)}\n".encode())


def _be_child(begin: Callable[..., Any], arguments: list[str]) -> None:
    """Whatever happens, it ends here: the loop above is its mother's."""
    code = 1
    try:
        begin(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_with_parent() -> None:
    """End this process when its parent, the test, is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
