"""The server that is killed: as `holdfast serve` runs it, with these settings."""

import os

from holdfast.server.run import run
from holdfast.server.sources import load_settings


def main(*given: str) -> int:
    """Settings as `name=value`."""
    flags = dict(each.split("=", 1) for each in given)
    os.write(1, b"opening\n")
    return run(load_settings(flags, {}).settings, announce=_announce)


def _announce(line: str) -> None:
    os.write(1, f"{line}\n".encode())
