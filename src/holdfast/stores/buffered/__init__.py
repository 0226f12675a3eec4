"""The fast path: an enqueue succeeds once it is in a local log and in Redis; it is stored in bulk later.

This module imports nothing, because `log.reader` also runs where the redis extra is not installed.
Start reading at `store`, then `fast_path`.
"""
