"""The fast path: an enqueue succeeds once it is in a local log and in Redis; it is stored in bulk later.

Nothing here knows a database: the store that is buffered for is passed in. This module itself imports nothing, because
`log/reader.py` also runs without the redis extra.
Start reading at `store.py`, then `fast_path.py`.
"""
