"""`.format("holdfast")` to read, readStream, write and writeStream: Spark finds this module by its name."""

from holdfast.pipeline.sources.queue import QueueSource
from holdfast.server.bulk import open_client, open_landing, open_messages


class DefaultSource(QueueSource):
    open_client = staticmethod(open_client)
    open_landing = staticmethod(open_landing)
    open_messages = staticmethod(open_messages)
