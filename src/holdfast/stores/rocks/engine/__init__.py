"""The write path: operations add their changes to one open commit, which is synced once for all waiting callers.

Knows keys and values, but not messages or queues: those are in `queues/`.
Start with `engine.py`, then `database.py` and `layers.py`.
"""
