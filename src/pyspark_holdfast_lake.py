"""`df.write` and `df.writeStream` `.format("holdfast_lake")`: Spark finds this module by its name."""

from holdfast.pipeline.sources.lake_sink import LakeSink


class DefaultSource(LakeSink):
    pass
