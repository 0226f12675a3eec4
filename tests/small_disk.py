"""A file system of a test's own, small enough to be filled."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 30.0


@contextmanager
def mounted(place: Path, size_bytes: int) -> Iterator[Path]:
    """Without the right to mount, tests that need one fail: they prove nothing else."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place)]
    subprocess.run(mount, check=True, timeout=_PATIENCE_S)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=_PATIENCE_S)
