"""The commit log: every commit is one frame in a file, on disk before its callers are answered.

Nothing here knows messages or RocksDB: a frame's body is bytes. A frame is never changed once it is written.
Start with `frames.py`, the format; then `commit_log.py` writes it and `replay.py` reads it after a crash.
"""
