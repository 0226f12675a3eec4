"""The fast path: an enqueue succeeds once it is in a local log and in Redis, and is stored in bulk later.

Nothing is imported here: the log is also read, by `log.reader`, where the redis extra is not installed.
Start reading at `store`, then `fast_path`.
"""
