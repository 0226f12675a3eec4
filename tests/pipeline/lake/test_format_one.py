"""Logs of lake tables and checkpoints of format 1, written once and kept here, are read by every later version."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.streaming.datasource import ReadMaxFiles

from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.delta import DeltaFiles
from holdfast.pipeline.lake.parquet import ParquetFiles
from holdfast.pipeline.lake.tables import EVENTS as EVENTS_TABLE
from holdfast.pipeline.schemas import LOGGED_CALLS
from holdfast.pipeline.sources.claims import _offset
from holdfast.pipeline.sources.journal import make_offset
from holdfast.pipeline.sources.segments import Logs, SegmentStreamReader

# A table after a compaction: the first commit's file was joined with another one.
LOG: dict[str, dict[str, Any]] = {
    "00000000000000000001.json": {
        "add": [{"new": "_new/r1/a", "path": "day=2026-01-31/r1-a", "size": 9, "rows": 3, "day": "2026-01-31"}],
        "remove": [],
        "marks": {"archive": [1, "12-40-3"]},
    },
    "00000000000000000002.json": {
        "add": [{"new": "_new/j2/b", "path": "day=2026-01-31/j2-b", "size": 18, "rows": 6, "day": "2026-01-31"}],
        "remove": ["day=2026-01-31/r1-a"],
        "marks": {},
    },
    "00000000000000000003.json": {"add": [], "remove": [], "marks": {"archive": [2, "15-40-3"], "drain/x": [1, "0"]}},
}


def test_the_log_of_a_parquet_table_is_read(tmp_path: Path) -> None:
    for name, commit in LOG.items():
        (tmp_path / "_log").mkdir(exist_ok=True)
        (tmp_path / "_log" / name).write_text(json.dumps(commit))
    (tmp_path / "day=2026-01-31").mkdir()
    (tmp_path / "day=2026-01-31" / "j2-b").write_bytes(b"")
    table = ParquetFiles(str(tmp_path), has_days=True)

    assert (table.mark("archive"), table.mark("drain/x")) == (Mark(2, "15-40-3"), Mark(1, "0"))
    assert table.mark("other") is None
    assert table.files() == [str(tmp_path / "day=2026-01-31/j2-b")]


def test_the_mark_of_a_delta_table_is_read(tmp_path: Path) -> None:
    marks = [
        Transaction("archive", 7),
        Transaction("archive#bytes", 9),
        Transaction("archive#0", int.from_bytes(b"123-456")),
        Transaction("archive#1", int.from_bytes(b"-7")),
    ]
    rows = pa.table({field.name: pa.array([], field.type) for field in EVENTS_TABLE.arrow})
    write_deltalake(
        tmp_path,
        rows,
        partition_by=["day"],
        commit_properties=CommitProperties(app_transactions=marks),
    )
    assert DeltaTable.is_deltatable(str(tmp_path))
    assert DeltaFiles(str(tmp_path), EVENTS_TABLE.arrow, has_days=True).mark("archive") == Mark(7, "123-456-7")


def test_the_offsets_of_checkpoints_stay_as_other_versions_wrote_them() -> None:
    assert make_offset("12-40-3", 55, None) == {"v": 1, "position": "12-40-3", "events": 55, "from": None}
    assert _offset(3, [2, 3]) == {"v": 1, "claim": 3, "claims": [2, 3]}

    def find(path: str) -> list[str]:
        return [f"{path}/log"]

    logs = Logs(paths=("a",), is_over=True, max_segments=1, find=find, open=lambda log, is_over: _TwoSegments())
    reader = SegmentStreamReader(logs, LOGGED_CALLS)
    assert reader.latestOffset({"v": 1, "logs": {"a/log": 4}}, ReadMaxFiles(1)) == {"v": 1, "logs": {"a/log": 5}}


class _TwoSegments:
    """A log with segments 4 and 5."""

    def numbers(self) -> list[int]:
        return [4, 5]
