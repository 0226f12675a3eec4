"""A driver that streams a queue into files, one for each batch, until it is killed."""

import json
import os
import sys
from pathlib import Path
from time import sleep
from typing import Any

from holdfast.pipeline.session import open_session


def main(url: str, queue: str, directory: Path, lease: str) -> None:
    spark = open_session(
        "drain",
        master="local[2, 4]",
        settings={
            "spark.sql.streaming.pollingDelay": "20ms",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.memory": "512m",
        },
        is_brief=True,
    )

    def keep(frame: Any, batch: int) -> None:
        """Whole or not at all; a batch that is run again replaces what it left."""
        rows = [(row.id, row.version) for row in frame.collect()]
        partial = directory / f"{batch}.partial"
        partial.write_text(json.dumps(rows))
        os.replace(partial, directory / "batches" / f"{batch}.json")

    source = spark.readStream.format("holdfast").schema("id string, version bigint")
    options = {"url": url, "queue": queue, "consumer": "spark", "lease": lease, "maxRows": 60, "rowsPerPartition": 30}
    while True:
        try:
            writer = source.options(**options).load().writeStream.foreachBatch(keep)
            writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
            writer.trigger(processingTime="0 seconds").start().awaitTermination()
        except Exception as error:
            sys.stderr.write(f"{str(error)[:2_000]}\n")
            sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
