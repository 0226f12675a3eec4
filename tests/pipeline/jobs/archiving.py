"""An archive that is killed at random and started again, and what must be true of the lake each time.

A store with a journal of everything that can happen to a message. `holdfast pipeline archive` runs as a shell would run
it, with a Java of its own; both are killed by SIGKILL at a random moment of a random batch. After every kill the lake
is read without Spark: its events are the journal's up to the position that it says it has come to, each once, and no
other. At last an archive comes through, and they are the journal's.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast
from holdfast.clock import steady_s
from holdfast.pipeline.jobs.archive import ENDS, WRITER
from holdfast.pipeline.lake.lake import Lake, LakeKind
from holdfast.pipeline.lake.tables import EVENTS, MESSAGES
from holdfast.pipeline.schemas import INSTANT
from holdfast.testing import ManualClock
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing
from tests.pipeline.journal_made import facts_of, journal_of, make_traffic, store

# Kills of one store and lake, and the batches that its journal makes.
ROUND = 5
BATCHES = 14
# Beside the store: what a Java that is killed leaves. With a blank, as on many a laptop.
JAVA_FILES = "java files"
# A batch takes about that long: a strike lands anywhere in the one after it.
_BATCH_S = 1.0
_START_S = 600.0
_LOOK_S = 0.02
# As for any session of seconds: it starts sooner.
_CONF = (
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory=512m",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
)


@dataclass
class Tally:
    events: int = 0
    kills: int = 0
    # Events in the lake after each kill.
    parts: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run_archive_kills(total: int, *, seed: int, progress: Progress = say_nothing) -> PartOutcome:
    """Kill this number of times, in rounds on a store and a lake each, Delta and plain Parquet in turn."""
    outcome = PartOutcome(name="archive-kills", unit="kills")
    dice, began, rounds = random.Random(seed), steady_s(), 0
    while outcome.done < total:
        own = dice.getrandbits(32)
        kind = (LakeKind.DELTA, LakeKind.PARQUET)[rounds % 2]
        with tempfile.TemporaryDirectory(prefix="holdfast-archive-kills-") as place:
            before = outcome.done
            tally = archive_under_kills(
                Path(place),
                kills=min(ROUND, total - before),
                seed=own,
                kind=kind,
                progress=lambda done, before=before: progress(before + done, total, "killed"),
            )
        for each in tally.wrong:
            outcome.violate(f"seed {own}, {kind}: {each}")
        outcome.done += tally.kills
        outcome.add_counts({"events": tally.events, "lakes": 1})
        rounds += 1
        if not tally.kills:
            outcome.violate(f"seed {own}: no archive was there to be killed")
            break
    outcome.seconds = steady_s() - began
    return outcome


def archive_under_kills(
    directory: Path,
    *,
    kills: int,
    seed: int,
    kind: LakeKind = LakeKind.DELTA,
    finish: Callable[[Path, Lake], None] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Tally:
    """`finish` archives the rest; without one a separate process does."""
    dice, tally = random.Random(seed), Tally()
    home, lake = directory / "store", Lake(str(directory / "lake"), kind)
    # By the time of the day: the other process has no clock but that, and the journal is kept for a week.
    clock = ManualClock(time.time_ns() // 1_000_000 - 3 * 86_400_000)
    with store(home, clock) as hf:
        make_traffic(hf, clock, dice)
        tally.events = len(journal_of(hf))
    rows = tally.events // BATCHES + 1
    for _ in range(kills):
        # Now and then between the files of its first batch and their commit.
        after = dice.choice((0, 1, 1, 2)) if tally.kills else 1
        if not _struck(home, lake, rows, after=after, delay_s=dice.random() * _BATCH_S):
            break
        tally.kills += 1
        tally.parts.append(_judge(home, lake, tally, is_through=False))
        progress(tally.kills)
    if finish is not None:
        finish(home, lake)
    else:
        _run(home, lake, rows)
    tally.events = _judge(home, lake, tally, is_through=True)
    return tally


def _start(home: Path, lake: Lake, rows: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "holdfast", "pipeline", "archive", "--url", str(home), "--lake", lake.url]
    command += ["--lake-format", lake.kind.value, "--batch-rows", str(rows), "--master", "local[2]", "--json"]
    for each in _CONF:
        command += ["--conf", each]
    files = home.with_name(JAVA_FILES)
    files.mkdir(exist_ok=True)
    return subprocess.Popen(
        command,
        env={**os.environ, "HOLDFAST_DURABILITY": "os", "TMPDIR": str(files)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _struck(home: Path, lake: Lake, rows: int, *, after: int, delay_s: float) -> bool:
    """Start it, and kill it and its Java this long after this number of batches. Return False if it ended before."""
    commits, writes = _progress(lake)
    process = _start(home, lake, rows)
    ends = steady_s() + _START_S
    try:
        while process.poll() is None and steady_s() < ends:
            now = _progress(lake)
            if now[0] >= commits + after and now[1] > writes:
                break
            time.sleep(_LOOK_S)
        time.sleep(delay_s)
        return process.poll() is None
    finally:
        for pid in _session_of(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def _progress(lake: Lake) -> tuple[int, int]:
    """Commits of events, and batches whose files were begun, by what lies there."""
    table = Path(lake.table(EVENTS).directory)
    log = table / ("_delta_log" if lake.kind is LakeKind.DELTA else "_log")
    return len(list(log.glob("*.json"))), len(list(Path(lake.table(EVENTS).new_files).glob("*")))


def _session_of(leader: int) -> list[int]:
    found = []
    for each in Path("/proc").iterdir():
        # Gone meanwhile is as good as not there.
        with suppress(OSError):
            if each.name.isdigit() and os.getsid(int(each.name)) == leader:
                found.append(int(each.name))
    return found


def _run(home: Path, lake: Lake, rows: int) -> None:
    process = _start(home, lake, rows)
    _, said = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the archive ended with {process.returncode}: {said[-2_000:]}")


def _judge(home: Path, lake: Lake, tally: Tally, *, is_through: bool) -> int:
    """Return the number of events in the lake. They must be the journal's, up to the lake's position or to its end."""
    mark = lake.table(EVENTS).mark(WRITER)
    upto = 0 if mark is None else int(mark.position)
    with holdfast.open(str(home), durability="os") as hf:
        events = [each for each in journal_of(hf) if is_through or each.seq <= upto]
    if is_through and events and events[-1].seq > upto:
        # Opened anew, a store tells of leases that ran out meanwhile: those came after the archive.
        events = [each for each in events if each.seq <= upto or each.event != "expired"]
    found, expected = facts_in(lake), facts_of(events)
    if found != expected:
        tally.wrong.append(
            f"after {tally.kills} kills the lake has {len(found)} events up to {upto}, and the journal {len(expected)}"
        )
    if is_through:
        ends = sorted((each.shard, each.seq) for each in events if each.event in ENDS)
        records = sorted((row["shard"], row["seq"]) for row in _rows_in(lake, MESSAGES, ("shard", "seq")))
        if records != ends:
            tally.wrong.append(f"the lake has {len(records)} final records, and the journal {len(ends)} ends")
    return len(found)


def facts_in(lake: Lake) -> list[tuple[Any, ...]]:
    """The lake's events as `facts_of` has them, read without Spark."""
    columns = EVENTS.table.columns
    return sorted(tuple(row[name] for name in columns) for row in _rows_in(lake, EVENTS, columns))


def _rows_in(lake: Lake, shape: Any, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in lake.table(shape).files():
        table = pq.ParquetFile(file.removeprefix("file://")).read(columns=list(columns))
        for at, part in enumerate(table.schema):
            if pa.types.is_timestamp(part.type):
                instant = table.column(at).cast(INSTANT).cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
                table = table.set_column(at, part.name, instant)
        rows += table.to_pylist()
    return rows
