"""The operations of a server: permissions, limits, and the calls of the dispatcher and the store.

Nothing here knows a protocol or a concrete store.
Start with `session.py`, which every door calls; then `queues.py` and `limits/`.
"""
