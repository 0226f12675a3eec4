"""The data source `holdfast`: queues as a source, in batches and as a stream, and as a sink."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from holdfast.pipeline.schemas import MESSAGES
from holdfast.pipeline.sources.claims import ClaimStreamReader, OpenClient, parse_stream_options
from holdfast.pipeline.sources.copies import CopyReader, OpenMessages
from holdfast.pipeline.sources.sink import OpenWriter, QueueStreamWriter, QueueWriter, parse_write_options
from holdfast.pipeline.sources.snapshot import SnapshotReader, parse_snapshot_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class QueueSource(DataSource):
    """The data source `holdfast`. A subclass sets the functions that open stores."""

    open_client: OpenClient
    open_writer: OpenWriter
    open_messages: OpenMessages

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> str:
        return MESSAGES.ddl

    def reader(self, schema: "StructType") -> SnapshotReader | CopyReader:
        options, columns = parse_snapshot_options(self.options), MESSAGES.only(schema.fieldNames())
        if options.store.is_directory:
            return CopyReader(options, columns, type(self).open_messages)
        return SnapshotReader(options, columns, type(self).open_client)

    def streamReader(self, schema: "StructType") -> ClaimStreamReader:
        return ClaimStreamReader(
            parse_stream_options(self.options), MESSAGES.only(schema.fieldNames()), type(self).open_client
        )

    def writer(self, schema: "StructType", overwrite: bool) -> QueueWriter:
        return QueueWriter(parse_write_options(self.options, schema, overwrite=overwrite), type(self).open_writer)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> QueueStreamWriter:
        # For a stream, `overwrite` means output mode complete.
        return QueueStreamWriter(parse_write_options(self.options, schema, overwrite=overwrite), type(self).open_writer)
