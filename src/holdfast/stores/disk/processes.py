"""Other processes of this machine, by their number."""

import os


def is_running(pid: int) -> bool:
    """Return whether a process with this number exists, on any POSIX system."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a file may name any number
        return False
    except PermissionError:  # another user's process
        return True
    return True
