"""`drain`: move a queue's messages to the lake, and ack them after they are stored.

The commit of a batch contains the stream's batch number, under a name that belongs to the checkpoint. A batch that
Spark repeats after a kill is therefore not stored again, and is acked. A message whose lease was lost on the way is
delivered again, and may be in two batches: readers of `payloads` must take one row per id.
"""

import threading
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

from holdfast.model.names import QueueRef
from holdfast.pipeline.jobs.progress import Check, Checked, Progress, silent
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import PAYLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_START_S = 60.0


class DrainSummary(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of `drain`."""

    batches: int
    messages: int
    checks: list[Check] = []


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
    """Move all messages that are ready at the start. By default, the checkpoint is stored in the lake.

    A checkpoint belongs to one lake.
    """
    checkpoint = checkpoint or f"{lake.url}/_checkpoints/drain-{ref.tenant}-{ref.queue}-{consumer}"
    stream = (
        spark.readStream.format("holdfast")
        .options(**options, tenant=ref.tenant, queue=ref.queue, consumer=consumer, maxRows=str(max_rows))
        .load()
    )
    writer = _BatchWriter(spark, lake, progress)
    query = (
        stream.writeStream.foreachBatch(writer.write)
        .option("checkpointLocation", checkpoint)
        .queryName(f"drain {ref} as {consumer}")
        .trigger(availableNow=True)
        .start()
    )
    # The query's id belongs to the checkpoint. A new checkpoint numbers its batches from 0 again.
    writer.name = f"drain/{query.id}"
    writer.is_started.set()
    query.awaitTermination()
    read = sum(each["numInputRows"] for each in query.recentProgress)
    return DrainSummary(
        batches=writer.batches,
        messages=writer.rows,
        checks=[Check(what="messages kept of those read", expected=read, found=writer.read)],
    )


class _BatchWriter:
    """Appends the batches of the stream to the lake, each at most once."""

    def __init__(self, spark: "SparkSession", lake: Lake, progress: Progress) -> None:
        self._spark = spark
        self._lake = lake
        self._progress = progress
        self.name = ""
        self.is_started = threading.Event()
        self.batches = self.rows = self.read = 0

    def write(self, batch: "DataFrame", number: Any) -> None:
        if not self.is_started.wait(_START_S):
            raise TimeoutError("the query did not start")
        rows = batch.select(*(F.col(each) for each in PAYLOADS.table.columns))
        # Batches count from 0, marks from 1.
        mark = Mark(int(number) + 1, str(number))
        table = self._lake.table(PAYLOADS)
        before = table.mark(self.name)
        if before is not None and before.batch >= mark.batch:
            # Stored before a kill. It must still be read, so that Spark completes the batch.
            self.read += rows.count()
            return
        kept = self._lake.append(self._spark, PAYLOADS, rows, writer=self.name, mark=mark)
        self.batches += 1
        self.rows += kept
        self.read += kept
        self._progress("messages", self.rows, None)
