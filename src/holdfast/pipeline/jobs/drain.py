"""`drain`: a queue's messages into the lake, each acked once it is there.

The stream's batch number is in the same commit as the batch, under a name that belongs to its checkpoint: a batch that
Spark does again after a kill is refused there, and acked. A message whose lease was lost on the way is delivered again,
and may stand in two batches: readers of `payloads` take one row for each id.
"""

import threading
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

from holdfast.model.names import QueueRef
from holdfast.pipeline.jobs.progress import Check, Progress, silent
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import PAYLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_START_S = 60.0


class DrainSummary(msgspec.Struct, frozen=True, kw_only=True):
    batches: int
    messages: int
    checks: list[Check] = []

    @property
    def is_sound(self) -> bool:
        return all(each.is_met for each in self.checks)


def drain(
    spark: "SparkSession",
    options: "Mapping[str, str]",
    ref: QueueRef,
    lake: Lake,
    *,
    consumer: str = "drain",
    checkpoint: str | None = None,
    max_rows: int = 50_000,
    progress: Progress = silent,
) -> DrainSummary:
    """Everything that was ready when it began. The checkpoint belongs to the lake, and lies in it unless given."""
    place = checkpoint or f"{lake.place}/_checkpoints/drain-{ref.tenant}-{ref.queue}-{consumer}"
    stream = (
        spark.readStream.format("holdfast")
        .options(**options, tenant=ref.tenant, queue=ref.queue, consumer=consumer, maxRows=str(max_rows))
        .load()
    )
    kept = _Keeper(spark, lake, progress)
    query = (
        stream.writeStream.foreachBatch(kept.keep)
        .option("checkpointLocation", place)
        .queryName(f"drain {ref} as {consumer}")
        .trigger(availableNow=True)
        .start()
    )
    # The checkpoint's own name: a new checkpoint counts its batches anew.
    kept.writer = f"drain/{query.id}"
    kept.is_started.set()
    query.awaitTermination()
    read = sum(each["numInputRows"] for each in query.recentProgress)
    return DrainSummary(
        batches=kept.batches,
        messages=kept.rows,
        checks=[Check(what="messages kept of those read", expected=read, found=kept.read)],
    )


class _Keeper:
    def __init__(self, spark: "SparkSession", lake: Lake, progress: Progress) -> None:
        self._spark = spark
        self._lake = lake
        self._progress = progress
        self.writer = ""
        self.is_started = threading.Event()
        self.batches = self.rows = self.read = 0

    def keep(self, batch: "DataFrame", number: Any) -> None:
        if not self.is_started.wait(_START_S):
            raise TimeoutError("the query did not start")
        rows = batch.select(*(F.col(each) for each in PAYLOADS.table.columns))
        # Batches count from 0, marks from 1.
        mark = Mark(int(number) + 1, str(number))
        table = self._lake.table(PAYLOADS)
        before = table.mark(self.writer)
        if before is not None and before.batch >= mark.batch:
            # Kept before a kill. It is read all the same, for Spark to see it through.
            self.read += rows.count()
            return
        kept = self._lake.append(self._spark, PAYLOADS, rows, writer=self.writer, mark=mark)
        self.batches += 1
        self.rows += kept
        self.read += kept
        self._progress("messages", self.rows, None)
