"""The fast path: an enqueue is answered once it is in a local log and in Redis, and stored in bulk later.

Nothing is imported here: the log is also read, by `reader`, where the redis extra is not installed. Start reading at
`store`.
"""
