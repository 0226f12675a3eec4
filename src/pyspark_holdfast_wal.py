"""`spark.read` and `spark.readStream` `.format("holdfast_wal")`: Spark finds this module by its name."""

from holdfast.pipeline.sources.segments import SegmentSource
from holdfast.server.bulk import find_logs, open_log


class DefaultSource(SegmentSource):
    find_logs = staticmethod(find_logs)
    open_log = staticmethod(open_log)
