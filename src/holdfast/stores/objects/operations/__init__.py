"""The operations of the object store: enqueue, claim, verdicts, bulk verbs, sweeps, ledgers, schedules, the directory.

Nothing here encodes documents or talks to a bucket's driver: `documents/` and `messages/` do.
Start with `enqueue.py` and `claims.py`.
"""
