"""Jobs, sources and sinks that move or examine messages in bulk, on Spark.

Only `server` and `cli` import this folder. Start reading at `session` and `jobs`.
"""

from holdfast.model.extras import require_extra

# Before any module of this folder is imported: an import that fails here names the extra. The extra's other modules
# are for some jobs only, and for machines without Java.
require_extra("spark", "the data pipeline", "pyspark", "pyarrow")
