"""Other processes on this machine, by process id."""

import os


def is_running(pid: int) -> bool:
    """Return whether a process with this id exists, on any POSIX system."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a marker file may contain any number
        return False
    except PermissionError:  # another user's process
        return True
    return True
