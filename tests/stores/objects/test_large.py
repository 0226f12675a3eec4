"""Payloads that are never in memory whole."""

import subprocess
import sys
from pathlib import Path

import pytest


def _extra_mib(directory: Path, mebibytes: int) -> int:
    command = [sys.executable, "-m", "tests.stores.objects.large", str(directory / "store"), str(mebibytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.spec("3.10")
@pytest.mark.slow
def test_a_payload_of_a_hundred_mebibytes_goes_in_and_out_with_little_memory(tmp_path: Path) -> None:
    assert _extra_mib(tmp_path, 100) < 50


@pytest.mark.proof
def test_a_payload_of_a_gibibyte_goes_in_and_out_with_less_than_a_hundred_mebibytes(tmp_path: Path) -> None:
    assert _extra_mib(tmp_path, 1_024) < 100
