"""The archive as a separate process, killed with SIGKILL in the middle."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.pipeline.jobs.archive import archive
from holdfast.pipeline.jobs.journals import OpenedJournal
from holdfast.pipeline.lake.lake import Lake
from tests.pipeline.jobs.archiving import JAVA_FILES, archive_under_kills
from tests.seeds import run_seed

pytestmark = pytest.mark.slow


@pytest.mark.spec("9.11")
def test_a_killed_archive_continues_in_another_process_without_loss_or_double(spark: Any, tmp_path: Path) -> None:
    def finish(home: Path, lake: Lake) -> None:
        with holdfast.open(str(home), durability="os") as hf:
            assert archive(spark, OpenedJournal(hf), lake).is_sound

    tally = archive_under_kills(tmp_path, kills=1, seed=run_seed(), finish=finish)

    assert tally.wrong == []
    [part] = tally.parts
    assert 0 < part < tally.events
    assert list((tmp_path / JAVA_FILES).glob("blockmgr-*")), "what Java was at lies where TMPDIR says"
