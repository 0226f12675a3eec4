"""The metrics, logs and traces of a server.

Nothing here decides anything about a call, and none of it keeps state in a module.
Start with `metrics.py`; `declared.py` lists every metric.
"""
