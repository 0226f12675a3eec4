"""`holdfast` as Spark knows it: the queue as a source, in batches and as a stream, and as a sink."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from holdfast.pipeline.schemas import MESSAGES
from holdfast.pipeline.sources.claims import ClaimStreamReader, OpenClient, claiming_of
from holdfast.pipeline.sources.copies import CopyReader, OpenMessages
from holdfast.pipeline.sources.sink import OpenLanding, QueueStreamWriter, QueueWriter, writing_of
from holdfast.pipeline.sources.snapshot import SnapshotReader, looking_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class QueueSource(DataSource):
    """Subclassed where the stores are known."""

    open_client: OpenClient
    open_landing: OpenLanding
    open_messages: OpenMessages

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> str:
        return MESSAGES.ddl

    def reader(self, schema: "StructType") -> SnapshotReader | CopyReader:
        looking, columns = looking_of(self.options), MESSAGES.only(schema.fieldNames())
        if looking.place.is_directory:
            return CopyReader(looking, columns, type(self).open_messages)
        return SnapshotReader(looking, columns, type(self).open_client)

    def streamReader(self, schema: "StructType") -> ClaimStreamReader:
        return ClaimStreamReader(claiming_of(self.options), MESSAGES.only(schema.fieldNames()), type(self).open_client)

    def writer(self, schema: "StructType", overwrite: bool) -> QueueWriter:
        return QueueWriter(writing_of(self.options, schema, overwrite=overwrite), type(self).open_landing)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> QueueStreamWriter:
        # `overwrite` is Spark's word for output mode complete.
        return QueueStreamWriter(writing_of(self.options, schema, overwrite=overwrite), type(self).open_landing)
