"""Commands that enqueue, claim and handle messages: `enqueue`, `dequeue`, `ack`, `run`, `worker` and more.

They must not know the kind of store, and import nothing of a server.
Start reading at `enqueue.py`.
"""
