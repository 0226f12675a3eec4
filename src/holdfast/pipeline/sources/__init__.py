"""Spark sources and sinks for queues, the journal, log segments and the lake.

It must not open a store: the modules that Spark finds by name, `pyspark_holdfast*`, connect these classes to one.
Start reading at `queue.py`, then `claims.py`.
"""
