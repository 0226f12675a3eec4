"""The commit log: every commit is one frame in a file, written before its callers get a response.

Knows neither messages nor RocksDB: the body of a frame is bytes. A written frame is never changed.
Start with `frames.py`, the format. `commit_log.py` writes the log, and `replay.py` reads it after a crash.
"""
