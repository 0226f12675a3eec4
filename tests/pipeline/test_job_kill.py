"""The archive as a process of its own, killed with SIGKILL in the middle."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.pipeline.jobs.archive import archive
from holdfast.pipeline.jobs.journals import OpenedJournal
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import EVENTS
from holdfast.testing import ManualClock
from tests.pipeline.journal_made import facts_of, journal_of, make_traffic, rows_of, store
from tests.seeds import run_seed

pytestmark = pytest.mark.slow

_ARCHIVER = """
import sys
import holdfast
from holdfast.pipeline.jobs.archive import archive
from holdfast.pipeline.jobs.journals import OpenedJournal
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.session import open_session
spark = open_session("killed", master="local[2]", is_brief=True)
with holdfast.open(sys.argv[1], durability="os") as hf:
    done = lambda what, done, total: print(done, flush=True)
    archive(spark, OpenedJournal(hf), Lake(sys.argv[2]), batch_rows=int(sys.argv[3]), progress=done)
"""


def test_a_killed_archive_goes_on_in_another_process_without_loss_or_double(spark: Any, tmp_path: Path) -> None:
    # By the time of the day: the other process has no clock but that, and the journal is kept for a week.
    clock, rng = ManualClock(time.time_ns() // 1_000_000 - 3 * 86_400_000), random.Random(run_seed())
    with store(tmp_path / "store", clock) as hf:
        make_traffic(hf, clock, rng)
        events = journal_of(hf)
    lake = Lake(str(tmp_path / "lake"))
    command = [sys.executable, "-c", _ARCHIVER, str(tmp_path / "store"), lake.place, str(len(events) // 12 + 1)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "it archived nothing"
        time.sleep(rng.random())
    finally:
        process.kill()
        process.communicate()
    part = len(rows_of(lake.read(spark, EVENTS)))

    with store(tmp_path / "store", clock) as hf:
        # Opened anew, a store tells of leases that ran out meanwhile.
        archive(spark, OpenedJournal(hf), lake)
        done = archive(spark, OpenedJournal(hf), lake)
        events = journal_of(hf)

    assert 0 < part < len(events)
    assert done.is_sound
    assert rows_of(lake.read(spark, EVENTS)) == facts_of(events)
