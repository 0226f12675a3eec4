"""The local write-ahead log of the fast path: writing, syncing, and reading it back.

Nothing here knows Redis or a database, and only `log_disk` calls the operating system to write.
Start reading at `wal.py`, then `records.py`.
"""
