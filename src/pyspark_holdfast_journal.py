"""`spark.read` and `spark.readStream` `.format("holdfast_journal")`: Spark finds this module by its name."""

from holdfast.pipeline.sources.journal import JournalSource
from holdfast.server.bulk import open_feed


class DefaultSource(JournalSource):
    open_feed = staticmethod(open_feed)
