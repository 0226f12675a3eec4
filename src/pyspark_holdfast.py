"""`.format("holdfast")` to read, readStream, write and writeStream: Spark finds this module by its name."""

from holdfast.pipeline.sources.queue import QueueSource
from holdfast.server.bulk import open_client, open_messages, open_writer


class DefaultSource(QueueSource):
    open_client = staticmethod(open_client)
    open_writer = staticmethod(open_writer)
    open_messages = staticmethod(open_messages)
