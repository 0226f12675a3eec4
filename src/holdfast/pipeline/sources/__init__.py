"""Queues, the journal, WAL segments and the lake as Spark knows sources and sinks.

The modules that Spark finds by name, `pyspark_holdfast*`, only put these together with what opens a store.
"""
