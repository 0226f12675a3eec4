"""Spark jobs, sources and sinks that move and examine messages in bulk.

It must not import a store or a server: those are passed in. Only `server` and `cli` import this folder.
Start reading at `session.py`, then `jobs/archive.py`.
"""

from holdfast.model.extras import require_extra

# Checked before any module of this folder is imported, so that the error names the missing extra. The other packages
# of the extra are needed only by some jobs, and on machines without Java.
require_extra("spark", "the data pipeline", "pyspark", "pyarrow")
