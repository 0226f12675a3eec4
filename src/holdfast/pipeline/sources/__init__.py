"""Spark sources and sinks for queues, the journal, log segments and the lake.

Nothing here opens a store: the modules that Spark finds by name, `pyspark_holdfast*`, connect these to one.
Start reading at `queue`, then `claims`.
"""
